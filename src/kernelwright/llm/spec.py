"""Which llm: `openai:MODEL`, `anthropic:MODEL`, either with `@URL` of another server, and options after commas.

`openai:gpt-5.1` · `anthropic:claude-sonnet-4-5,temperature=0.7` · `openai:qwen3-coder@http://localhost:8000/v1`
· `openai:gpt-5.1,mode=params`. The whole text is journalled, so a key in it is refused, and not repeated.
"""

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, model_validator

from kernelwright.core.errors import BadInput
from kernelwright.core.frozen import Frozen

FORM = re.compile(r"(?P<provider>[a-z]+):(?P<model>[^\s,@]+)(?:@(?P<base_url>https?://[^\s,]+))?")
OPTIONS = ("temperature", "max_tokens", "timeout", "attempts", "mode", "stream", "reply")
REMEDY = (
    "Write openai:MODEL, anthropic:MODEL or openai:MODEL@http://HOST:PORT/v1, then options such as ,temperature=0.7; "
    f"options are {', '.join(OPTIONS)}."
)
LOCAL = ("localhost", "127.0.0.1", "::1")


class LlmSpec(Frozen):
    """An llm and how it is asked."""

    provider: Literal["openai", "anthropic"]
    """Whose protocol is spoken."""
    model: str
    """Model id, as the server knows it."""
    base_url: str | None = None
    """Address of another server than the provider's own."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """None leaves it to the server: some models take none."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer; None leaves it to the server."""
    timeout: float = Field(default=300.0, gt=0)
    """Seconds one request may take."""
    attempts: int = Field(default=4, ge=1, le=20)
    """Requests for one answer, the first included."""
    mode: Literal["code", "params"] = "code"
    """Whether it may write code, or only choose values of `PARAMS`."""
    stream: bool = False
    """Whether the answer comes piece by piece: some proxies cut a line that is silent for long."""
    reply: Literal["free", "schema"] = "free"
    """Whether the server itself is asked to hold the answer to its schema, as llama.cpp and vLLM can."""

    @model_validator(mode="after")
    def _temperature_is_one_the_provider_takes(self) -> "LlmSpec":
        if self.provider == "anthropic" and (self.temperature or 0) > 1:
            raise ValueError("a temperature of anthropic is at most 1")
        return self

    @property
    def where(self) -> str:
        """Return the server's name for messages and the journal."""
        return f"{self.provider}@{self.base_url}" if self.base_url else self.provider

    @property
    def is_local(self) -> bool:
        """Tell whether the server is on this machine."""
        return self.base_url is not None and urlsplit(self.base_url).hostname in LOCAL


def parse_spec(text: str) -> LlmSpec:
    """Return the llm a text names."""
    first, *options = text.strip().split(",")
    found = FORM.fullmatch(first)
    if found is None:
        raise BadInput("--author llm", "what follows names no llm", REMEDY)
    fields: dict[str, object] = {
        name: value for name, value in found.groupdict().items() if value is not None
    }
    if _holds_a_key(found["model"], found["base_url"]):
        raise BadInput(
            "--author llm", "what follows holds a key or a password", "Keys come from the environment alone."
        )
    for option in options:
        name, _, value = option.partition("=")
        if name not in OPTIONS or not value:
            raise BadInput("--author llm", f"there is no option {name!r} with a value", REMEDY)
        fields[name] = value
    try:
        return LlmSpec.model_validate(fields)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise BadInput(
            "--author llm", f"{'.'.join(map(str, wrong['loc'])) or 'options'}: {wrong['msg'].lower()}", REMEDY
        ) from None


def _holds_a_key(model: str, base_url: str | None) -> bool:
    """Tell whether something in the name would be a secret in the journal."""
    if model.startswith("sk-"):
        return True
    parts = urlsplit(base_url or "")
    return "@" in parts.netloc or bool(parts.query or parts.fragment)

"""An llm whose answers are a function of what it is asked: real prompts, schemas and conversations, and no network.

The library's own function model stands where a server's model would; everything above it is the code of a real run.
"""

import inspect
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kernelwright.agents.llm import LlmAuthor
from kernelwright.llm.ledger import read_prices
from kernelwright.llm.providers import Server
from kernelwright.llm.secret import Secret
from kernelwright.llm.spec import parse_spec

KEY = "planted-key-7c41e2aa90"
SPEC = "openai:gpt-5-mini"
ROLES = {
    "You write fast kernels": "writer",
    "You choose parameter values": "writer",
    "You say what a kernel waits for": "analyst",
    "You look back": "reflector",
    "You put one measured result": "namer",
}


@dataclass(frozen=True)
class Asked:
    """One question as the model saw it."""

    role: str
    prompt: str
    """The last message of the user's, complaints included."""
    whole: str
    """Everything that was sent."""
    seed: int | None


Told = str | dict[str, Any]


@dataclass
class Script:
    """Answers by role; every question is remembered."""

    answer: Callable[[Asked], Told | Awaitable[Told]]
    asked: list[Asked] = field(default_factory=list)

    def author(self, spec: str = SPEC) -> LlmAuthor:
        """Return the author behind the script."""
        from pydantic_ai.models.function import FunctionModel

        @asynccontextmanager
        async def opened(found, key):
            assert key is None or key.reveal() == KEY
            yield FunctionModel(self._reply, model_name=found.model)

        return LlmAuthor(Server(parse_spec(spec), Secret(KEY), opened=opened), read_prices())

    async def _reply(self, messages, info):
        from pydantic_ai.messages import ModelResponse, TextPart

        texts = [str(part.content) for message in messages for part in message.parts]
        role = next(name for words, name in ROLES.items() if texts[0].startswith(words))
        asked = Asked(role, texts[-1], "\n".join(texts), (info.model_settings or {}).get("seed"))
        self.asked.append(asked)
        told = self.answer(asked)
        if inspect.isawaitable(told):
            told = await told
        return ModelResponse(parts=[TextPart(told if isinstance(told, str) else json.dumps(told))])


def reflection(why: str = "It waited for memory.", avoid=("gathers",), try_next=("wider loads",)) -> Told:
    """Return a valid answer of the reflector."""
    return {
        "diagnosis_was_right": True,
        "change_helped": None,
        "why": why,
        "avoid": list(avoid),
        "try_next": list(try_next),
    }


def claim(words: str = "Two passes over a row are faster than one here.") -> Told:
    """Return a valid answer of the namer."""
    return {
        "claim": words,
        "only_this_op": True,
        "only_this_backend": True,
        "only_this_arch": False,
    }

"""The providers' libraries: a client for one request, the conversation and the settings in their words.

Everything here is imported where it is used: without the extra `llm` the rest of the package works.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel

from kernelwright.llm.questions import Message, seed_sent
from kernelwright.llm.secret import Secret
from kernelwright.llm.spec import LlmSpec

OWN_ADDRESS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
NO_KEY = "none"


def client_of(spec: LlmSpec, key: Secret | None) -> Any:
    """Return a fresh client of the provider's library, to be closed after one request."""
    shown = key.reveal() if key else NO_KEY
    # Explicit address and no retries: otherwise variables of the environment redirect it, and it retries by itself.
    address = spec.base_url or OWN_ADDRESS[spec.provider]
    plain = _plain_http(spec) if address.startswith("http://") else None
    if spec.provider == "openai":
        from openai import AsyncOpenAI

        return AsyncOpenAI(api_key=shown, base_url=address, max_retries=0, http_client=plain)
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(api_key=shown, base_url=address, max_retries=0, http_client=plain)


def _plain_http(spec: LlmSpec) -> Any:
    """Return a client for a server without TLS: it follows no redirect and uses no proxy for this machine.

    Its TLS context trusts nobody; loading the list of whom to trust takes 40 ms, two thirds of a request.
    """
    import httpx2

    trusts_nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.AsyncClient(verify=trusts_nobody, follow_redirects=False, trust_env=not spec.is_local)


def model_of(spec: LlmSpec, client: Any) -> Any:
    """Return the model as the library knows it."""
    if spec.provider == "openai":
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel(spec.model, provider=OpenAIProvider(openai_client=client))
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel(spec.model, provider=AnthropicProvider(anthropic_client=client))


@asynccontextmanager
async def opened(spec: LlmSpec, key: Secret | None) -> AsyncIterator[Any]:
    """Give the model for one request; its connection is closed afterwards, whatever happened."""
    # A client of its own for every request: a shared one is bound to the event loop it was first used in.
    async with client_of(spec, key) as client:
        yield model_of(spec, client)


def wishes_of(spec: LlmSpec, schema: type[BaseModel] | None) -> Any:
    """Return what the answer is to be like, for a server that can be held to a schema; None for no wish."""
    if spec.reply != "schema" or schema is None:
        return None
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition

    wanted = OutputObjectDefinition(json_schema=schema.model_json_schema(), name=schema.__name__)
    return ModelRequestParameters(output_mode="native", output_object=wanted)


async def answered(model: Any, history: list[Any], spec: LlmSpec, settings: Any, wishes: Any) -> Any:
    """Return the model's answer, waited for as a whole or piece by piece."""
    from pydantic_ai.direct import model_request, model_request_stream

    common = {"model_settings": settings, "model_request_parameters": wishes, "instrument": False}
    if not spec.stream:
        return await model_request(model, history, **common)
    async with model_request_stream(model, history, **common) as stream:
        async for _ in stream:
            pass
        return stream.get()


def history_of(messages: Sequence[Message], hide: Callable[[str], str]) -> list[Any]:
    """Return the conversation in the library's words; a key that strayed into a prompt is cut out."""
    from pydantic_ai.messages import ModelRequest, ModelResponse, SystemPromptPart, TextPart, UserPromptPart

    found: list[Any] = []
    for message in messages:
        text = hide(message.text)
        match message.speaker:
            case "assistant":
                found.append(ModelResponse(parts=[TextPart(text)]))
            case "system":
                found.append(ModelRequest(parts=[SystemPromptPart(text)]))
            case "user":
                found.append(ModelRequest(parts=[UserPromptPart(text)]))
    return found


def settings_of(spec: LlmSpec, seed: int | None, limit_s: float) -> Any:
    """Return what goes out beside the texts; what was left to the server is left out."""
    found: dict[str, Any] = {"timeout": limit_s, "request_timeout": limit_s, "max_retries": 0}
    if spec.temperature is not None:
        found["temperature"] = spec.temperature
    if spec.max_tokens is not None:
        found["max_tokens"] = spec.max_tokens
    if (sent := seed_sent(spec, seed)) is not None:
        found["seed"] = sent
    return found

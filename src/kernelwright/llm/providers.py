"""Asking a server: one question, one answer, or one of our errors. Never an invented answer.

1. The question goes out with the key in its header and nowhere else; the key is cut out of every text.
2. A server that is busy, failing or out of reach is asked again, a bounded number of times, waiting as it says.
3. What the library raises becomes an error of ours. It is dropped, not chained: it holds the request and its key.
"""

import asyncio
import importlib.util
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from kernelwright.core.errors import (
    BadInput,
    LlmBadReply,
    LlmCancelled,
    LlmContextTooLong,
    LlmFailed,
    LlmKeyRefused,
    LlmQuotaSpent,
    LlmRateLimited,
    LlmRequestRefused,
    LlmServerFailed,
    LlmTimedOut,
    LlmUnknownModel,
    LlmUnreachable,
    PackageMissing,
)
from kernelwright.core.halt import Halt
from kernelwright.llm.clients import answered, history_of, opened, settings_of, wishes_of
from kernelwright.llm.questions import Question, Reply
from kernelwright.llm.secret import ANY_VARIABLE, OWN_VARIABLE, Secret, find_key
from kernelwright.llm.spec import LlmSpec

OFFLINE = "KERNELWRIGHT_OFFLINE"
"""Set to anything but 0, it allows servers on this machine alone."""
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
LEAST_TIME_S = 0.001
MAX_DETAIL = 200
TOO_LONG = ("context length", "context size", "context window", "prompt is too long", "too many tokens")
"""How servers without a code for it say that a prompt does not fit."""


@dataclass(frozen=True)
class Again:
    """An attempt that may be repeated, and what it becomes if it may not."""

    failure: LlmFailed
    wait_s: float | None = None
    """How long the server asks to wait; None if it does not say."""


class Malformed(Exception):
    """An answer that is not in the protocol."""


@dataclass(frozen=True)
class Server:
    """An llm behind HTTP."""

    spec: LlmSpec
    key: Secret | None = field(repr=False)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    opened: Callable[[LlmSpec, Secret | None], AbstractAsyncContextManager[Any]] = opened
    """Gives the library's model for one request."""

    def hide(self, text: str) -> str:
        """Return a text without the key."""
        return self.key.hide_in(text) if self.key else text

    def ask(self, question: Question) -> Reply:
        """Return the answer, asking again where that may help."""
        began = self.clock()
        for attempt in range(1, self.spec.attempts + 1):
            if question.halt and question.halt.is_given:
                raise _after(attempt, LlmCancelled(self.spec.where))
            left = question.limit_s - (self.clock() - began)
            outcome = self._attempt(question, min(self.spec.timeout, max(left, LEAST_TIME_S)), attempt)
            if isinstance(outcome, _Found):
                return outcome.reply(self.clock() - began, attempt)
            if isinstance(outcome, LlmFailed):
                raise _after(attempt, outcome)
            wait = outcome.wait_s
            if wait is None:
                wait = min(FIRST_WAIT_S * 2 ** (attempt - 1), LONGEST_WAIT_S)
            left = question.limit_s - (self.clock() - began)
            if attempt == self.spec.attempts or wait >= left:
                raise _after(attempt, outcome.failure)
            question.halt.sleep(wait) if question.halt else self.sleep(wait)
        raise AssertionError("the last attempt ends the loop")

    def _attempt(self, question: Question, limit_s: float, attempt: int) -> "_Found | LlmFailed | Again":
        """Return what one request came to; nothing of the library's own errors outlives this function."""
        from pydantic_ai.exceptions import AgentRunError, UserError

        try:
            return _waited_for(self._request(question, limit_s), question.halt)
        except asyncio.CancelledError:
            if question.halt is None or not question.halt.is_given:
                raise
            return LlmCancelled(self.spec.where)
        except (AgentRunError, UserError, TimeoutError, Malformed) as error:
            return self._translated(error, limit_s, attempt)

    async def _request(self, question: Question, limit_s: float) -> "_Found":
        async with self.opened(self.spec, self.key) as model:
            history = history_of(question.messages, self.hide)
            settings = settings_of(self.spec, question.seed, limit_s)
            wishes = wishes_of(self.spec, question.schema)
            try:
                found = await answered(model, history, self.spec, settings, wishes)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                # The library reads fields without looking: an answer of another shape trips it anywhere.
                raise Malformed(f"it has not the shape of the protocol ({type(error).__name__})") from None
        usage = found.usage
        known = bool(usage.input_tokens or usage.output_tokens)  # a server that counts nothing says 0
        return _Found(
            text=self.hide(found.text or ""),
            model=str(found.model_name or self.spec.model),
            tokens_in=int(usage.input_tokens) if known else None,
            tokens_out=int(usage.output_tokens) if known else None,
            cached=int(usage.cache_read_tokens),
            is_cut=found.finish_reason == "length",
        )

    def _translated(self, error: Exception, limit_s: float, attempt: int) -> LlmFailed | Again:
        """Return our error for the library's."""
        from pydantic_ai import exceptions as theirs

        where, detail = self.spec.where, self._detail(error)
        wait: float | None = getattr(error, "retry_after", None)
        match error:
            case theirs.ModelAuthenticationError():
                # Without the server's words: they repeat parts of the key.
                return LlmKeyRefused(where, ANY_VARIABLE if self.spec.base_url else self._variable)
            case theirs.ModelQuotaExceededError():
                return LlmQuotaSpent(where)
            case theirs.ModelRateLimitError():
                return Again(LlmRateLimited(where, attempt, wait), wait)
            case theirs.ModelNotFoundError():
                return LlmUnknownModel(where, self.spec.model)
            case theirs.ModelRequestTimeout() | theirs.ModelTimeoutError() | TimeoutError():
                return Again(LlmTimedOut(where, limit_s))
            case theirs.ModelConnectionError():
                return Again(LlmUnreachable(where, detail))
            case theirs.ModelContextWindowExceededError():
                return LlmContextTooLong(where, self.spec.model)
            case theirs.ModelRequestRejectedError():
                if any(words in detail.lower() for words in TOO_LONG):
                    return LlmContextTooLong(where, self.spec.model)
                return LlmRequestRefused(where, detail)
            case theirs.ModelAPIError():
                return Again(LlmServerFailed(where, attempt, detail), wait)
            case theirs.UserError():
                return LlmRequestRefused(where, detail)
            case _:
                return LlmBadReply(where, detail)

    @property
    def _variable(self) -> str:
        return OWN_VARIABLE[self.spec.provider]

    def _detail(self, error: Exception) -> str:
        """Return what the server said, short, on one line, without the key."""
        body = getattr(error, "body", None)
        inner = body.get("error", body) if isinstance(body, Mapping) else None
        said = inner.get("message") if isinstance(inner, Mapping) else None
        status = getattr(error, "status_code", None)
        # The key goes first: cut in half it would no longer be found.
        words = " ".join(self.hide(str(said or error)).split())[:MAX_DETAIL].rstrip(". ")
        return f"status {status}: {words}" if status and said else words or type(error).__name__


@dataclass(frozen=True)
class _Found:
    text: str
    model: str
    tokens_in: int | None
    tokens_out: int | None
    cached: int
    is_cut: bool

    def reply(self, seconds: float, attempts: int) -> Reply:
        """Return it with what only the asking knows."""
        return Reply(**self.__dict__, seconds=seconds, attempts=attempts)


def _after(attempts: int, failure: LlmFailed) -> LlmFailed:
    failure.attempts = attempts
    return failure


def connect(spec: LlmSpec, environment: Mapping[str, str] | None = None) -> Server:
    """Return the server of an llm, its key found; nothing is sent yet."""
    given = os.environ if environment is None else environment
    for package in ("pydantic_ai", spec.provider):
        if importlib.util.find_spec(package) is None:
            raise PackageMissing(package.replace("_", "-"), "an llm as author", "llm")
    if given.get(OFFLINE, "0") not in ("", "0") and not spec.is_local:
        raise BadInput(
            "--author llm",
            f"{spec.where!r} is another machine and {OFFLINE} is set",
            f"Unset {OFFLINE}, or name a server on this machine.",
        )
    return Server(spec, find_key(spec.provider, spec.base_url, given))


def _waited_for(asked: Coroutine[Any, Any, _Found], halt: Halt | None) -> _Found:
    """Return what a request comes to, also where an event loop is running already, as in a notebook."""
    wanted = _unless(halt, asked) if halt else asked
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wanted)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wanted).result()


async def _unless(halt: Halt, asked: Coroutine[Any, Any, _Found]) -> _Found:
    """Return what a request comes to; the word closes its connection and raises `CancelledError`."""
    request, loop = asyncio.ensure_future(asked), asyncio.get_running_loop()

    def stop() -> None:
        with suppress(RuntimeError):  # it ended in this very moment, and its loop with it
            loop.call_soon_threadsafe(request.cancel)

    with halt.calling(stop):
        return await request

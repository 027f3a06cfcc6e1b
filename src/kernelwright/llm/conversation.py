"""One consultation: ask, read the answer strictly, and tell the llm once what was wrong with it.

A prompt that is too long for the model is put again in a shorter form, if there is one. Whatever happens, what was
said is handed out; a failure is a reason, not an exception.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kernelwright.core.errors import LlmContextTooLong, LlmFailed
from kernelwright.core.exchange import Exchange
from kernelwright.core.frozen import digest
from kernelwright.core.halt import Halt
from kernelwright.core.thinking import Consultation
from kernelwright.llm.ledger import Prices, cost_of
from kernelwright.llm.questions import Llm, Message, Question, Reply, seed_sent

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
MAX_COMPLAINT = 1000
CUT = "it ends at the token limit"


class BadReply(Exception):
    """What is wrong with an answer, in words for whoever gave it."""


@dataclass(frozen=True)
class Asked:
    """What bounds a consultation and prices it."""

    prices: Prices
    seed: int | None = None
    limit_s: float = 600.0
    clock: Callable[[], float] = time.monotonic
    halt: Halt | None = None
    topic: str = ""
    """What is asked about, whatever numbers the prompt holds."""
    schema: type[BaseModel] | None = None
    """What the answer must be."""

    def about(self, topic: str, schema: type[BaseModel]) -> "Asked":
        """Return the same for one topic and one kind of answer."""
        return replace(self, topic=topic, schema=schema)


def consult(
    llm: Llm,
    role: str,
    prompts: Sequence[tuple[Message, ...]],
    read: Callable[[str], T],
    asked: Asked,
) -> Consultation[T]:
    """Return what `read` makes of the answer to the first prompt that fits, the fullest being the first."""
    said = _Record(llm, role, asked)
    waiting, messages, has_complained = list(prompts[1:]), prompts[0], False
    while True:
        try:
            reply = said.ask(messages)
        except LlmContextTooLong as error:
            if not waiting:
                return said.ended(None, str(error))
            messages = waiting.pop(0)
            continue
        except LlmFailed as error:
            return said.ended(None, str(error))
        try:
            if reply.is_cut:
                raise BadReply(CUT)
            return said.ended(read(reply.text), "")
        except BadReply as bad:
            complaint = " ".join(llm.hide(str(bad)).split())[:MAX_COMPLAINT]
        said.blame(complaint)
        if has_complained:
            where = f"{llm.spec.where} ({llm.spec.model})"
            return said.ended(None, f"the llm at {where} gave no usable answer twice: {complaint}")
        has_complained = True
        told = (
            f"That answer cannot be used: {complaint}. Answer again, the whole JSON object and nothing else."
        )
        messages = (*messages, Message("assistant", reply.text or "(empty)"), Message("user", told))


class _Record:
    """What was said so far in one consultation."""

    def __init__(self, llm: Llm, role: str, asked: Asked) -> None:
        self.llm, self.role, self.asked = llm, role, asked
        self.exchanges: list[Exchange] = []
        self.texts: dict[str, str] = {}

    def ask(self, messages: tuple[Message, ...]) -> Reply:
        """Ask and note; an error is noted and raised."""
        spec = self.llm.spec
        spent = sum(one.seconds for one in self.exchanges)
        question = Question(
            self.role,
            messages,
            self.asked.seed,
            limit_s=max(self.asked.limit_s - spent, 1e-3),
            topic=self.asked.topic,
            schema=self.asked.schema,
            halt=self.asked.halt,
        )
        prompt = self.llm.hide(written(messages))
        common = Exchange(
            role=self.role,
            provider=spec.where,
            model=spec.model,
            temperature=spec.temperature,
            seed=seed_sent(spec, self.asked.seed),
            topic=self.asked.topic,
            prompt_hash=self._kept(prompt),
            seconds=0.0,
        )
        began = self.asked.clock()
        try:
            reply = self.llm.ask(question)
        except LlmFailed as error:
            ended = {"failure": str(error), "error": type(error).__name__, "attempts": error.attempts}
            ended["seconds"] = self.asked.clock() - began
            self.exchanges.append(common.model_copy(update=ended))
            raise
        changes = {
            "model": reply.model,
            "reply_hash": self._kept(reply.text),
            "tokens_in": reply.tokens_in,
            "tokens_out": reply.tokens_out,
            "cost": cost_of(spec, reply, self.asked.prices),
            "seconds": reply.seconds,
            "attempts": reply.attempts,
        }
        self.exchanges.append(common.model_copy(update=changes))
        return reply

    def blame(self, complaint: str) -> None:
        """Note that the last answer could not be used."""
        self.exchanges[-1] = self.exchanges[-1].model_copy(update={"failure": complaint})

    def ended(self, value: T | None, reason: str) -> Consultation[T]:
        """Return the consultation."""
        return Consultation(value, reason, tuple(self.exchanges), tuple(self.texts.values()))

    def _kept(self, text: str) -> str:
        # A lone surrogate fits in no blob.
        text = text.encode(errors="backslashreplace").decode()
        found = digest(text)
        self.texts[found] = text
        return found


def written(messages: Sequence[Message]) -> str:
    """Return a conversation as one text."""
    return "\n\n".join(f"[{message.speaker}]\n{message.text}" for message in messages)


def read_json(text: str, schema: type[M]) -> M:
    """Return the one JSON object in an answer, alone or in a fence, checked against its schema."""
    stripped = text.strip()
    fenced = None if stripped.startswith("{") else FENCED.search(stripped)
    try:
        # Line breaks inside strings are let through: code is full of them, and nothing else could be meant.
        found = json.loads(fenced.group(1) if fenced else stripped, strict=False)
    except (ValueError, RecursionError) as error:
        raise BadReply(f"it is no JSON object: {error}") from None
    try:
        return schema.model_validate_json(json.dumps(found))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, one['loc'])) or 'object'}: {one['msg']}" for one in error.errors()[:4]]
        raise BadReply("; ".join(faults)) from None

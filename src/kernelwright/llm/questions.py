"""What is asked of an llm and what it answers, whoever it is."""

from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel

from kernelwright.core.halt import Halt
from kernelwright.llm.spec import LlmSpec


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    speaker: Literal["system", "user", "assistant"]
    text: str


@dataclass(frozen=True)
class Question:
    """What is asked, and what bounds the asking."""

    role: str
    messages: tuple[Message, ...]
    seed: int | None = None
    limit_s: float = 600.0
    """Seconds for all attempts together, waits included."""
    topic: str = ""
    """What it is about, whatever numbers the prompt holds."""
    schema: type[BaseModel] | None = None
    """What the answer must be, for a server that can be held to it."""
    halt: Halt | None = None
    """Given, it ends the question."""


@dataclass(frozen=True)
class Reply:
    """What came back."""

    text: str
    model: str
    """The exact id the server named."""
    seconds: float
    attempts: int
    tokens_in: int | None = None
    tokens_out: int | None = None
    cached: int = 0
    """How many of `tokens_in` the server had read before."""
    is_cut: bool = False
    """Whether it ends at the token limit."""


class Llm(Protocol):
    """Whoever answers questions: a server, or a recording of one."""

    @property
    def spec(self) -> LlmSpec:
        """Return which llm it is."""
        ...

    def ask(self, question: Question) -> Reply:
        """Return the answer or raise an `LlmFailed`."""
        ...

    def hide(self, text: str) -> str:
        """Return a text without the key."""
        ...


def seed_sent(spec: LlmSpec, seed: int | None) -> int | None:
    """Return the seed that goes out: one protocol has no place for it."""
    return None if seed is None or spec.provider == "anthropic" else seed % (1 << 31)

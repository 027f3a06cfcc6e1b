"""What an llm is asked besides a kernel: what one waits for, what an attempt teaches, how a result is worded.

The nouns are here and not in `llm/`, so that the engine can ask an author without knowing who answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

from pydantic import Field

from kernelwright.core.brief import Answer, Brief
from kernelwright.core.candidate import Candidate
from kernelwright.core.device import Device
from kernelwright.core.diagnosis import Diagnosis, Metric
from kernelwright.core.exchange import Exchange
from kernelwright.core.foreign import Line, Visible
from kernelwright.core.frozen import Frozen
from kernelwright.core.halt import Halt
from kernelwright.core.lesson import Lesson
from kernelwright.core.verdict import Evaluation

T = TypeVar("T")
MOST_POINTS = 4


@dataclass(frozen=True)
class Consultation(Generic[T]):
    """What came of asking an llm."""

    value: T | None
    reason: str
    """Why there is no value."""
    exchanges: tuple[Exchange, ...]
    texts: tuple[str, ...]
    """The prompts and replies the exchanges name by hash."""


@dataclass(frozen=True)
class Profiled:
    """A candidate with the numbers taken of it on one case."""

    candidate: Candidate
    device: Device
    case: str
    """Label of the case."""
    metrics: tuple[Metric, ...]
    cards: Mapping[str, str]
    """What each technique card is for, by its name."""


@dataclass(frozen=True)
class Attempted:
    """An attempt with its end."""

    diagnosis: str
    """What it worked against, in words."""
    note: str
    """What was tried, in its author's words."""
    change: str
    """Against its first parent: values and a unified diff."""
    evaluation: Evaluation
    decision: str
    """Why it was kept or reverted; empty if nothing was decided."""


class Reflection(Frozen):
    """What one attempt teaches."""

    diagnosis_was_right: bool | None
    """Whether the kernel waited for what was said; null if the verdict cannot tell."""
    change_helped: bool | None
    """Whether it became faster and stayed right; null if the verdict cannot tell."""
    why: Visible = Field(min_length=1, max_length=1000)
    """What happened, in one or two sentences."""
    avoid: tuple[Line, ...] = Field(default=(), max_length=MOST_POINTS)
    """What not to do again here."""
    try_next: tuple[Line, ...] = Field(default=(), max_length=MOST_POINTS)
    """What follows from it."""


@dataclass(frozen=True)
class Measured:
    """A result worth remembering."""

    op: str
    backend: str
    arch: str
    bottleneck: str | None
    note: str
    """What was tried, in its author's words."""
    change: str
    """Against its first parent: values and a unified diff."""
    outcome: str
    """What the judge or the gate said, in one sentence."""
    ratio: float | None
    """Old time over new time, if there is one."""
    evaluations: tuple[str, ...]
    """Hashes of the evaluations or comparisons it rests on."""


@runtime_checkable
class Thinker(Protocol):
    """An author that can be asked for more than kernels."""

    def propose(self, brief: Brief) -> Answer:
        """Answer a brief."""
        ...

    def analyse(self, profiled: Profiled, wanted: int, seed: int) -> Consultation[tuple[Diagnosis, ...]]:
        """Return what a candidate waits for, its evidence checked against the metrics."""
        ...

    def reflect(self, attempted: Attempted, seed: int) -> Consultation[Reflection]:
        """Return what an attempt teaches."""
        ...

    def name(self, measured: Measured, seed: int) -> Consultation[Lesson]:
        """Return the lesson of a result."""
        ...

    def until(self, halt: Halt) -> "Thinker":
        """Return the same author, whose questions end when the word is given."""
        ...

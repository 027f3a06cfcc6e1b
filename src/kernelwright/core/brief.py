"""`Brief` and `Answer`: what an author is told and what it says; both cross a pipe to authors that are programs."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from kernelwright.core.candidate import Author, Candidate, ParamChoice, ParamValue
from kernelwright.core.case import Case
from kernelwright.core.exchange import Exchange
from kernelwright.core.expansion import Memory
from kernelwright.core.foreign import Note, Visible
from kernelwright.core.frozen import Frozen
from kernelwright.core.lesson import Lesson
from kernelwright.core.plan_language import PlanFault, first_values
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Evaluation, Screening, Status


class Attempt(Frozen):
    """An earlier candidate, as an author is told of it."""

    candidate_hash: str
    """Which."""
    relation: Literal["ancestor", "sibling"]
    """An ancestor of the first parent, or made from the same one."""
    author: Author
    """Who made it."""
    note: Note
    """What was tried, in its author's words."""
    status: Status | None
    """How the judge ended; None if there is no verdict yet."""
    reason: Visible = ""
    """Why it failed, or why it was kept or reverted."""
    speed: float | None = Field(default=None, gt=0)
    """Baseline time over its time, if it is certified."""
    choices: tuple[ParamChoice, ...] = ()
    """Its parameters."""
    change: str = ""
    """What was changed against its own first parent, as a bounded unified diff."""


class Ending(StrEnum):
    """How an attempt ended."""

    KEPT = "kept"
    """Proven faster, or as fast and simpler."""
    REVERTED = "reverted"
    """Right, and not proven faster."""
    FAILED = "failed"
    """Refused by the judge, or found out while it was timed."""


class Memo(Frozen):
    """A conclusion of the shared memory, as an author is told of it."""

    candidate_hash: str
    """From which attempt."""
    number: int
    """Its number in the run."""
    parent_hash: str = ""
    """What that was made from."""
    agent: str
    """Who tried it and concluded."""
    relation: Literal["ancestor", "sibling", "elsewhere", "kin"]
    """On the first parent's line, made from the same parent, elsewhere in the problem, or in another one of the op."""
    outcome: Ending
    """How it ended."""
    status: Status
    """What the judge said."""
    speed: float | None = Field(default=None, gt=0)
    """Baseline time over its time, if it is certified."""
    why: Visible = ""
    """What happened, in its author's words."""
    avoid: tuple[str, ...] = ()
    """What not to do again."""
    try_next: tuple[str, ...] = ()
    """What follows from it."""
    change: str = ""
    """Values and text it changed against its parent; empty where the attempt itself is told."""


class Brief(Frozen):
    """Everything an author is told."""

    problem: Problem
    """What is to be made faster."""
    parents: tuple[Candidate, ...]
    """What to start from: change the first one, combine it with the second if there is one."""
    evaluations: tuple[Evaluation, ...]
    """What the judge said of the parents."""
    memory: Memory = Memory.INHERIT
    """What was told of earlier attempts; `clean` asks for a fresh start."""
    hint: str = ""
    """What is wanted."""
    bold: bool = False
    """Whether larger steps are wanted than those that led nowhere."""
    diagnosis: int = Field(default=0, ge=0)
    """Which of the diagnoses to work on."""
    diagnoses: tuple[str, ...] = ()
    """What the first parent waits for, strongest first."""
    attempts: tuple[Attempt, ...] = ()
    """Earlier attempts, as the memory mode has it."""
    memos: tuple[Memo, ...] = ()
    """What the crew concluded from attempts, the most relevant first, as the memory mode has it."""
    prescription: str = ""
    """The technique card to try first; authors at work at the same time are given different ones."""
    screenings: tuple[Screening, ...] = ()
    """Cheap looks taken at the first parent's own source, in any problem of the run, in order."""
    kin_screenings: tuple[Screening, ...] = ()
    """The same of its ancestors' and of the other parents' sources: good guesses, no more."""
    cases: tuple[Case, ...] = ()
    """Cases of other problems that the screenings speak of."""
    contract: str = ""
    """What a candidate must be: the op's signature and the language's rules."""
    cards: tuple[str, ...] = ()
    """Techniques that apply here."""
    notes: tuple[str, ...] = ()
    """Rules, hardware notes and documents that match what the parent waits for, each with its name in front."""
    lessons: tuple[Lesson, ...] = ()
    """What was learnt before."""
    known: tuple[str, ...] = ()
    """Keys of everything the tree holds for this problem: proposing one of them again is no proposal."""
    most_trials: int = Field(default=8, ge=0)
    """Cheap looks that may be asked for in this answer."""
    time_limit_s: float = Field(default=600.0, gt=0)
    """When an author that has not answered is stopped."""
    seed: int = Field(default=0, ge=0)
    """Source of whatever an author draws: the same brief gives the same answer."""


class Proposal(Frozen):
    """A candidate an author wants judged."""

    source: str = Field(max_length=1 << 20)
    """The whole source text."""
    backend: str
    """Its language."""
    author: Author
    """Who proposes it."""
    note: Note = ""
    """What is tried and why."""
    choices: tuple[ParamChoice, ...] = ()
    """Parameters per case, the rule for unseen shapes last; none means the first values of `PARAMS`."""

    @model_validator(mode="after")
    def _is_writable_and_serves_every_shape(self) -> "Proposal":
        self.source.encode()  # a lone surrogate fits in no file
        if self.choices and self.choices[-1].case_hashes:
            raise ValueError("the last choice must have no cases: it serves unseen shapes")
        return self

    def candidate(self, problem: Problem, parents: Sequence[str] = ()) -> Candidate:
        """Return what is to be judged."""
        return Candidate(
            op=problem.op,
            backend=self.backend,
            source=self.source,
            choices=self.choices or (ParamChoice(values=_first_values(self.source)),),
            parents=tuple(parents),
            author=self.author,
            note=self.note,
        )


def _first_values(source: str) -> dict[str, ParamValue]:
    try:
        return first_values(source)
    except PlanFault:
        return {}  # the static guards refuse the file by name


class Trial(Frozen):
    """A cheap look an author wants taken: a `Screening` answers it."""

    candidate_hash: str
    """Whose source."""
    values: dict[str, ParamValue]
    """With which parameters."""
    case_hash: str
    """On which case."""


class Answer(Frozen):
    """What an author says to a brief."""

    proposals: tuple[Proposal, ...] = ()
    """To be judged."""
    trials: tuple[Trial, ...] = ()
    """Looks wanted first; the author is asked again when they are in the tree."""
    reason: Visible = ""
    """Why there is nothing to be judged."""
    exchanges: tuple[Exchange, ...] = ()
    """What was said to an llm and by it on the way here, in order."""
    texts: tuple[str, ...] = ()
    """The prompts and replies the exchanges name by hash."""

    @model_validator(mode="after")
    def _says_something(self) -> "Answer":
        if not self.proposals and not self.reason:
            raise ValueError("an answer without a proposal must say why")
        return self

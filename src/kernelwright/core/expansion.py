"""`Expansion`: what a strategy asks for, and the `Allowance` it is given to ask with."""

from enum import StrEnum

from pydantic import Field

from kernelwright.core.frozen import Frozen


class Memory(StrEnum):
    """What an author is told of the tree besides the parents themselves."""

    INHERIT = "inherit"
    """The parent's own trajectory: every step from the seed to it."""
    SIBLINGS = "siblings"
    """What else was made from the same parents, and how it went."""
    BOTH = "both"
    """Trajectory and siblings."""
    CLEAN = "clean"
    """Nothing: a fresh start from the parents alone."""


class Expansion(Frozen):
    """Which nodes to expand next, and how."""

    problem_hash: str
    """Of which problem."""
    parents: tuple[str, ...] = ()
    """Candidates to start from, the one to be changed first; a second one is to be combined with it."""
    memory: Memory = Memory.INHERIT
    """What the author is told of earlier attempts."""
    diagnosis: int = Field(default=0, ge=0)
    """Which of the parent's diagnoses to work on, strongest first; past the last one the author chooses anew."""
    hint: str = ""
    """A few words on what is wanted of this expansion."""
    worker: int = Field(default=0, ge=0)
    """For which author of the crew."""
    bold: bool = False
    """Whether larger steps are wanted than those that led nowhere."""
    backend: str = ""
    """Language of a first draft; empty for the first one of the run."""


class Allowance(Frozen):
    """What a strategy may ask for now, and what it asked for before."""

    problem_hash: str
    """The problem whose turn it is."""
    expansions: int = Field(ge=0)
    """How many expansions there is room for."""
    pending: tuple[Expansion, ...] = ()
    """Asked for and not answered yet: authors are at work on them."""
    barren: tuple[Expansion, ...] = ()
    """Answered with nothing, or with what the tree already holds."""

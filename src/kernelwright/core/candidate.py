"""`Candidate`: immutable source and its chosen parameters; no result inside."""

from enum import StrEnum

from pydantic import Field, model_validator

from kernelwright.core.foreign import Line, Note
from kernelwright.core.frozen import Frozen, Noun, digest

ParamValue = bool | int | float | str


class Origin(StrEnum):
    """Who answers for a candidate."""

    AUTHOR = "author"
    """Anybody: every guard applies."""
    BASELINE = "baseline"
    """Shipped with the package: exempt from guards, delegation and the audit, and judged in its own types alone."""


class Author(Frozen):
    """Who proposed a candidate."""

    name: Line
    """File name of the agent, `seed`, `baseline` or a person's."""
    detail: Line = ""
    """Model id, move, trial or commit: whatever finds the proposal again."""


class ParamChoice(Frozen):
    """The parameter values chosen for some cases."""

    case_hashes: tuple[str, ...] = ()
    """Cases these values were chosen for; empty for the rule that serves unseen shapes."""
    values: dict[str, ParamValue] = Field(default_factory=dict)
    """Value by name, each one of those `PARAMS` lists."""


class Candidate(Noun):
    """One source file in one language, with a table of chosen parameters."""

    op: str
    """The op it implements."""
    backend: str
    """The language, a file of `backends/`."""
    source: str
    """The whole source text."""
    choices: tuple[ParamChoice, ...] = (ParamChoice(),)
    """Parameters per case; the last entry has no cases and serves unseen shapes."""
    origin: Origin = Origin.AUTHOR
    """Who answers for it."""
    parents: tuple[str, ...] = ()
    """Hashes of the candidates it was made from; rides along."""
    author: Author = Author(name="unknown")
    """Who proposed it; rides along."""
    note: Note = ""
    """One sentence: what was tried and why; rides along."""

    def identity(self) -> object:
        """Return what decides how it behaves: op, backend, source, choices, origin."""
        # The source by its digest: writing two kilobytes as JSON takes far longer than hashing them.
        choices = [[choice.case_hashes, choice.values] for choice in self.choices]
        return [self.op, self.backend, digest(self.source), choices, self.origin.value]

    @model_validator(mode="after")
    def _is_writable_and_serves_every_shape(self) -> "Candidate":
        self.source.encode()  # UnicodeEncodeError is a ValueError: a lone surrogate fits in no file
        if not self.choices or self.choices[-1].case_hashes:
            raise ValueError("the last choice must have no cases: it serves unseen shapes")
        return self

    def values_for(self, case_hash: str) -> dict[str, ParamValue]:
        """Return the parameters for a case, by the rule for unseen shapes if it has no row of its own."""
        for choice in self.choices:
            if case_hash in choice.case_hashes:
                return choice.values
        return self.choices[-1].values

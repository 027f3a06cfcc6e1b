"""`Lesson`: a small cited claim learnt from evaluations; `WarmStart`: an earlier winner for a similar problem."""

import math
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from kernelwright.core.candidate import Candidate
from kernelwright.core.case import Case, DType
from kernelwright.core.foreign import MOST_IN_A_FILE, Line, Name, in_a_line
from kernelwright.core.frozen import Frozen, Noun, canonical_json, digest

OTHER_DTYPE = 2.0
"""Another element type is as far as a factor e² in size."""
MOST_IN_A_CLAIM = 400
Claim = Annotated[str, AfterValidator(partial(in_a_line, most=MOST_IN_A_CLAIM)), Field(min_length=1)]
"""One bounded line: shelves are filled from files of others too, and briefs quote what they hold."""
Word = Annotated[str, Field(max_length=MOST_IN_A_FILE)]
Values = dict[Word, bool | int | float | Word]
"""Parameter values by name: a source may list any that it has room for."""


class Teaching(StrEnum):
    """What a lesson tells."""

    GAIN = "gain"
    """Something that was kept."""
    TRAP = "trap"
    """Something that failed in the same way more than once."""


class Shape(Frozen):
    """A size a lesson was learnt at."""

    axes: dict[Name, Annotated[int, Field(ge=0, lt=1 << 63)]]
    """Extent by axis name."""
    dtype: DType
    """Element type."""

    @classmethod
    def of(cls, case: Case) -> "Shape":
        """Return the size of a case."""
        return cls(axes=case.axes, dtype=case.dtype)

    @property
    def label(self) -> str:
        """Return a short human name such as `512x256 fp32`."""
        return f"{'x'.join(str(extent) for extent in self.axes.values())} {self.dtype.value}"

    def distance(self, other: "Shape") -> float:
        """Return how far two sizes are from each other: by the logarithms of their extents, and by type."""
        names = self.axes.keys() | other.axes.keys()
        apart = (
            abs(math.log((1 + self.axes.get(name, 0)) / (1 + other.axes.get(name, 0)))) for name in names
        )
        return sum(apart) + (OTHER_DTYPE if self.dtype is not other.dtype else 0.0)


def apart(ones: Iterable[Shape], others: Sequence[Shape]) -> float:
    """Return how far some sizes are from others: each to its nearest, the farthest of them counts."""
    return max((min((one.distance(other) for other in others), default=0.0) for one in ones), default=0.0)


class Lesson(Noun):
    """What was learnt, where it holds, and what it rests on."""

    claim: Claim
    """One sentence a later author can act on."""
    teaching: Teaching = Teaching.GAIN
    """Whether it is to be done or to be avoided."""
    op: Name | None = None
    """Op it holds for; None for all."""
    backend: Name | None = None
    """Language it holds for; None for all."""
    arch: Name | None = None
    """Architecture it holds for; None for all."""
    bottleneck: Name | None = None
    """Diagnosis it belongs to."""
    shapes: tuple[Shape, ...] = ()
    """Sizes it was learnt at; none if it does not depend on them."""
    ratio: float | None = Field(default=None, gt=0)
    """Measured effect, if there is one."""
    ci_low: float | None = Field(default=None, gt=0)
    """Lower end of its 95 % interval."""
    ci_high: float | None = Field(default=None, gt=0)
    """Upper end of its 95 % interval."""
    move: Line = ""
    """The mechanical rewrite that did it, if one did."""
    values: Values = Field(default_factory=dict)
    """Parameter values that did it, or that the winner ran with."""
    author: Line = ""
    """Who proposed what was kept or failed."""
    candidate_hash: Name = ""
    """The candidate it was learnt from."""
    parent_hash: Name = ""
    """What that was made from."""
    evaluations: tuple[Name, ...] = Field(min_length=1)
    """Hashes of the evaluations or comparisons it rests on: a claim without one is not a lesson."""

    @model_validator(mode="after")
    def _interval_holds_the_effect(self) -> "Lesson":
        low, high = self.ci_low, self.ci_high
        if self.ratio is not None and low is not None and high is not None and not low <= self.ratio <= high:
            raise ValueError(f"effect {self.ratio} lies outside its interval [{low}, {high}]")
        return self

    @property
    def scope(self) -> str:
        """Return where it holds, in words; empty if everywhere."""
        return ", ".join(filter(None, (self.op, self.backend, self.arch, self.bottleneck)))

    @property
    def effect(self) -> str:
        """Return the measured effect with its interval; empty if there is none."""
        if self.ratio is None:
            return ""
        interval = f" [{self.ci_low:.3f}, {self.ci_high:.3f}]" if self.ci_low and self.ci_high else ""
        return f"x{self.ratio:.3f}{interval}"

    @property
    def key(self) -> str:
        """Return what two sightings of the same lesson share: op, language, architecture, and the claim's words.

        The diagnosis is no part of it: it rests on measured times and may differ where the lesson is the same.
        """
        scope = [self.op, self.backend, self.arch, self.teaching.value]
        return digest(canonical_json([*scope, normal_claim(self.claim)]))

    def applies(self, op: str, backend: str, arch: str) -> bool:
        """Tell whether it says something about an op in a language on an architecture."""
        return self.op in (None, op) and self.backend in (None, backend) and self.arch in (None, arch)


def normal_claim(claim: str) -> str:
    """Return a claim without case, punctuation and the width of its spaces."""
    return " ".join(re.findall(r"[a-z0-9_.=%]+", claim.lower()))


class WarmStart(Frozen):
    """An earlier winner, fitted to a problem of this run: judged like everybody else."""

    problem_hash: str
    """For which problem."""
    candidate: Candidate
    """Its source, with values of the nearest size it was chosen for."""
    run_id: str
    """The run it won."""
    shapes: tuple[Shape, ...]
    """Sizes it won at."""
    ratio: float | None = Field(default=None, gt=0)
    """What it was proven to gain there over the faster baseline."""
    evaluations: tuple[str, ...] = ()
    """Comparisons that prove it."""
    lessons: tuple[str, ...] = ()
    """Keys of the lessons it was made by: what comes of it here speaks for or against them."""


class Document(Frozen):
    """A text of the user's that briefs may quote."""

    name: str
    """Path below the folder that was named."""
    content_hash: str
    """Blob with the text as it was when the run began."""

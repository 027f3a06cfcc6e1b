"""What the shelf of lessons holds: a lesson with everything seen of it, its standing, and the winners of earlier runs.

A *place* is a problem: the same op at the same sizes on the same device. Seen again in the same place, a lesson says
nothing new; only another place can confirm or contradict it.
"""

from enum import StrEnum

from pydantic import Field

from kernelwright.core.foreign import MOST_IN_A_FILE, Line, Name
from kernelwright.core.frozen import Frozen, canonical_json, digest
from kernelwright.core.lesson import Lesson, Shape, Teaching, Values

CONFIRMING = 2
"""Places that must have shown a lesson before it is promoted."""
MOST_REFERENCE = 1 << 13
"""Characters of the name of a problem's own reference, which holds a path."""


class Standing(StrEnum):
    """How far a lesson is trusted."""

    PROMOTED = "promoted"
    """Seen in two places or more, and in more than contradict it."""
    NEW = "new"
    """Seen in one place."""
    DEMOTED = "demoted"
    """Contradicted in at least as many places as have shown it; no run is given it."""


class Sighting(Frozen):
    """One result that confirms or contradicts a lesson."""

    problem_hash: Name
    """The place."""
    run_id: Name
    """The run."""
    confirms: bool
    """Whether it speaks for the lesson."""
    ratio: float | None = Field(default=None, gt=0)
    """What was measured there."""
    ci_low: float | None = Field(default=None, gt=0)
    """Lower end of its 95 % interval."""
    ci_high: float | None = Field(default=None, gt=0)
    """Upper end of its 95 % interval."""
    evaluations: tuple[Name, ...] = Field(min_length=1)
    """Evaluations or comparisons it rests on."""


class KeptLesson(Frozen):
    """A lesson and everything seen of it."""

    lesson: Lesson
    """As it was first learnt."""
    sightings: tuple[Sighting, ...] = ()
    """For and against it, oldest first."""

    @property
    def confirmed(self) -> int:
        """Return the places that have shown it."""
        return len({one.problem_hash for one in self.sightings if one.confirms})

    @property
    def contradicted(self) -> int:
        """Return the places that have shown the contrary."""
        return len({one.problem_hash for one in self.sightings if not one.confirms})

    @property
    def standing(self) -> Standing:
        """Return how far it is trusted."""
        if self.contradicted and self.contradicted >= self.confirmed:
            return Standing.DEMOTED
        return Standing.PROMOTED if self.confirmed >= CONFIRMING else Standing.NEW

    @property
    def rank(self) -> tuple[int, int, float, str]:
        """Return where it stands in a list: trusted ones first, then the larger proven effect."""
        order = list(Standing).index(self.standing)
        sure = self.lesson.ci_low if self.lesson.teaching is Teaching.GAIN and self.lesson.ci_low else 1.0
        return order, self.contradicted - self.confirmed, -sure, self.lesson.claim


class ChosenValues(Frozen):
    """The values a winner ran with at some sizes."""

    shapes: tuple[Shape, ...] = ()
    """The sizes; none for the rule that serves unseen ones."""
    values: Values = Field(default_factory=dict)
    """Value by name."""


class EarlierWinner(Frozen):
    """The best kernel of a problem of an earlier run."""

    op: Name
    """What it computes."""
    backend: Name
    """Its language."""
    arch: Name
    """Where it won."""
    device: Line
    """The driver's name of the device."""
    reference: str | None = Field(default=None, max_length=MOST_REFERENCE)
    """The problem's own reference, if the op's is not it: only the very same one makes two problems similar."""
    shapes: tuple[Shape, ...] = Field(min_length=1)
    """Sizes it won at."""
    source: str = Field(min_length=1, max_length=MOST_IN_A_FILE)
    """The whole source text."""
    choices: tuple[ChosenValues, ...] = Field(min_length=1)
    """Its table of values, the rule for unseen sizes last."""
    note: Line = ""
    """What its author said of it."""
    ratio: float = Field(gt=0)
    """Time of the faster baseline over its time."""
    ci_low: float = Field(gt=0)
    """Lower end of the 95 % interval."""
    ci_high: float = Field(gt=0)
    """Upper end of the 95 % interval."""
    judge_version: str = Field(default="", max_length=100)
    """By which version of the judge's rules; empty where that was not noted."""
    run_id: Name
    """The run."""
    evaluations: tuple[Name, ...] = Field(min_length=1)
    """The comparison that proves it."""
    lessons: tuple[Name, ...] = ()
    """Keys of the lessons learnt on the way to it."""

    @property
    def key(self) -> str:
        """Return what makes it itself: a place holds one winner per run."""
        sizes = [shape.model_dump(mode="json") for shape in self.shapes]
        return digest(
            canonical_json([self.op, self.backend, self.device, self.reference, sizes, self.run_id])
        )

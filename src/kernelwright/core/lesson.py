"""`Lesson`: a small cited claim learnt from evaluations, retrieved for later briefs."""

from pydantic import Field

from kernelwright.core.frozen import Noun


class Lesson(Noun):
    """What was learnt, where it holds, and what it rests on."""

    claim: str = Field(min_length=1)
    """One sentence a later author can act on."""
    op: str | None = None
    """Op it holds for; None for all."""
    backend: str | None = None
    """Language it holds for; None for all."""
    arch: str | None = None
    """Architecture it holds for; None for all."""
    bottleneck: str | None = None
    """Diagnosis it belongs to."""
    ratio: float | None = Field(default=None, gt=0)
    """Measured effect, if there is one."""
    evaluations: tuple[str, ...] = Field(min_length=1)
    """Hashes of the evaluations or comparisons it rests on: a claim without one is not a lesson."""

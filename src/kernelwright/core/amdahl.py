"""How much a whole gains when its parts do."""

from collections.abc import Iterable

from pydantic import Field

from kernelwright.core.frozen import Frozen


class Part(Frozen):
    """A part of the whole: its share of the time and how much faster it becomes."""

    share: float = Field(ge=0, le=1)
    """Share of the whole's time before."""
    speedup: float = Field(gt=0)
    """Time before over time after."""


def end_to_end_speedup(parts: Iterable[Part]) -> float:
    """Return the speed-up of the whole when these disjoint parts change and the rest stays."""
    chosen = tuple(parts)
    total = sum(part.share for part in chosen)
    if total > 1 + 1e-9:
        raise ValueError(f"shares of disjoint parts add up to {total:.4f}, more than the whole")
    remaining = max(0.0, 1 - total) + sum(part.share / part.speedup for part in chosen)
    return 1 / remaining


def speedup_limit(share: float) -> float:
    """Return the end-to-end speed-up if a part of that share took no time at all."""
    return float("inf") if share >= 1 else 1 / (1 - share)

"""How much a whole gains when its parts do."""

from collections.abc import Iterable, Sequence

from pydantic import Field

from kernelwright.core.frozen import Frozen

AT_FLOOR = 0.03
"""A part this close to its floor is not offered: what is left is within the accuracy of the floor itself."""
LEAST_LEFT = 1e-6
"""Share of the time that always stays: a whole that takes no time has no speed-up."""


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


class Hot(Frozen):
    """A part of the whole: the time it takes and the least it could take."""

    time_us: float = Field(ge=0)
    """Time now."""
    floor_us: float = Field(ge=0)
    """Least time; one above the time is a floor for data that comes from further away than it does here."""

    @property
    def least_us(self) -> float:
        """Return the floor, or the time where that is less: nothing gets slower."""
        return min(self.time_us, self.floor_us)

    @property
    def headroom(self) -> float | None:
        """Return time over floor; None without a floor."""
        return self.time_us / self.least_us if self.least_us > 0 else None


def within_reach(part: Hot) -> bool:
    """Tell whether a part is further from its floor than 3 %."""
    return part.time_us > (1 + AT_FLOOR) * part.least_us


def gain(parts: Sequence[Hot], total_us: float) -> float:
    """Return the end-to-end speed-up if these disjoint parts reached their floors and the rest stayed."""
    left = total_us - sum(part.time_us - part.least_us for part in parts)
    return total_us / max(left, sum(part.least_us for part in parts), total_us * LEAST_LEFT)


def together(parts: Sequence[Hot], total_us: float) -> tuple[float, ...]:
    """Return the speed-up if the first 1, 2, 3 ... of these parts reached their floors."""
    return tuple(gain(parts[:count], total_us) for count in range(1, len(parts) + 1))


def reachable(parts: Sequence[Hot], total_us: float) -> float:
    """Return the speed-up if every part took its floor and nothing happened between them."""
    least = sum(part.least_us for part in parts)
    return max(1.0, total_us / max(least, total_us * LEAST_LEFT))

"""Scales, ticks and numbers as people read them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

NICE = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
SHORT = 4.0
"""An axis that spans less than this factor has even steps."""
SPARSE = (1.0, 2.0, 5.0)
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


@dataclass(frozen=True)
class LogScale:
    """Positive values on a logarithmic axis."""

    low: float
    high: float
    start: float
    """Place of the low end."""
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a value; values outside lie on the nearer end."""
        inside = min(max(value, self.low), self.high)
        part = math.log(inside / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)


def padded(values: Sequence[float], by: float = 1.12, least: float = 1.3) -> tuple[float, float]:
    """Return the ends of a logarithmic axis around positive values, at least a factor `least` apart."""
    low, high = min(values), max(values)
    if high / low < least:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(least), middle * math.sqrt(least)
    return low / by, high * by


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round numbers between the ends of a logarithmic axis: even steps on a short one, else by decades."""
    if high / low < SHORT:
        return _even(low, high, most)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (NICE, SPARSE, (1.0,)):
        found = [step * 10.0**power for power in powers for step in steps]
        found = [value for value in found if low <= value <= high]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def _even(low: float, high: float, most: int) -> list[float]:
    size = 10.0 ** math.floor(math.log10(high))
    for step in (size * part for part in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            return [place * step for place in range(first, last + 1)]
    return [low, high]


def whole_ticks(last: int, most: int = 8) -> list[int]:
    """Return whole numbers from one to the last, few enough to be read."""
    step = next(
        one for size in range(12) for one in (10**size, 2 * 10**size, 5 * 10**size) if last / one <= most
    )
    return sorted({1, *range(step, last + 1, step)}) if step > 1 else list(range(1, last + 1))


def factor(value: float) -> str:
    """Return a speed-up on an axis."""
    return f"×{value:.3g}"


def rate(value: float, unit: str) -> str:
    """Return a rate with the prefix that keeps it short."""
    scale, prefix = next(((s, p) for s, p in UNITS if value >= s), (1.0, ""))
    return f"{value / scale:.3g}\u00a0{prefix}{unit}"


def micros(value: float | None) -> str:
    """Return a time given in microseconds."""
    if value is None:
        return "–"
    if value >= 1e6:
        return f"{value / 1e6:.3g}\u00a0s"
    return f"{value / 1e3:.3g}\u00a0ms" if value >= 1e3 else f"{value:.3g}\u00a0µs"


def span(seconds: float | None) -> str:
    """Return a length of time as people say it."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds:.2g}\u00a0s"
    if seconds < 120:
        return f"{seconds:.0f}\u00a0s"
    minutes = seconds / 60
    return f"{minutes:.0f}\u00a0min" if minutes < 120 else f"{minutes / 60:.1f}\u00a0h"


def percent(share: float | None) -> str:
    """Return a share."""
    return "–" if share is None else f"{100 * share:.1f}\u00a0%"


def calls(count: float | None) -> str:
    """Return a number of calls, rounded to what is known of it."""
    if count is None:
        return "–"
    if count < 1000:
        return f"{math.ceil(count)}"
    digits = math.floor(math.log10(count)) - 1
    return f"{round(count, -digits):,.0f}".replace(",", "\u00a0")

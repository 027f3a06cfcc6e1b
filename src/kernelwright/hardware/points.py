"""The measured points of a calibration and the lines and rates drawn from them: pure functions on plain numbers."""

from collections.abc import Sequence
from itertools import combinations
from statistics import median

from pydantic import Field

from kernelwright.core.device import Ceiling, Ceilings
from kernelwright.core.frozen import Frozen

MOST_FIXED = 4.0
"""A fixed cost is at most so many empty calls. On busy cores the lines through streams of 2 MB and more begin at 80 us,
the time threads take to wake up: a floor with that in it hid regions of 80 us from every search."""


class StreamPoint(Frozen):
    """The time of one stream at one size."""

    bytes_moved: int = Field(gt=0)
    """Bytes read and written by one call."""
    time_us: float = Field(gt=0)
    """Median time of a call."""


class MatrixPoint(Frozen):
    """The time of one matrix product."""

    compute_class: str
    """fp32, tf32, fp16 or bf16."""
    size: int = Field(gt=0)
    """Rows, columns and depth."""
    layout: str
    """nn: both row-major; nt: the second one column-major."""
    time_us: float = Field(gt=0)
    """Median time of a product."""

    @property
    def flops(self) -> float:
        """Return the rate in FLOP/s."""
        return 2 * self.size**3 / self.time_us * 1e6


class Measured(Frozen):
    """What the measuring half hands over: points, nothing derived."""

    streams: dict[str, tuple[StreamPoint, ...]]
    """Sweeps by name: `copying`, `triad` (CPU) and `reading` become ceilings, `kernel_copy` is kept as evidence."""
    matrices: tuple[MatrixPoint, ...]
    """All products timed."""
    empty_us: float = Field(ge=0)
    """Time of a call that does nothing: what the fixed cost of a read should be near."""


def fitted(points: Sequence[StreamPoint]) -> Ceiling:
    """Return the line through the points after Theil and Sen: the median of all pairwise slopes, then of the rests.

    A preempted size cannot bend it. Noise can still make the fixed cost negative; the line then goes through zero.
    """
    slopes = [
        (b.time_us - a.time_us) / (b.bytes_moved - a.bytes_moved)
        for a, b in combinations(points, 2)
        if a.bytes_moved != b.bytes_moved
    ]
    slope = median(slopes)
    fixed = median(point.time_us - slope * point.bytes_moved for point in points)
    if slope <= 0 or fixed < 0:
        slope, fixed = median(point.time_us / point.bytes_moved for point in points), 0.0
    return Ceiling(fixed_us=fixed, rate=1e6 / slope)


def derived(measured: Measured) -> Ceilings:
    """Return the ceilings of the points: two lines, and the best product of each compute class.

    On a CPU the better of copy and triad is the line of what reads and writes. What fp32 reaches bounds the narrower
    types from below: nothing stops a kernel from computing in fp32. A floor is what no kernel can beat, so its fixed
    cost is not what one framework pays for its threads.
    """
    best: dict[str, float] = {}
    for point in measured.matrices:
        best[point.compute_class] = max(best.get(point.compute_class, 0.0), point.flops)
    if fp32 := best.get("fp32"):
        best |= {name: max(best.get(name, 0.0), fp32) for name in ("tf32", "fp16", "bf16")}
    mixed = [fitted(measured.streams[name]) for name in ("copying", "triad") if name in measured.streams]
    copying, reading = (
        line.model_copy(update={"fixed_us": min(line.fixed_us, MOST_FIXED * measured.empty_us)})
        for line in (max(mixed, key=lambda line: line.rate), fitted(measured.streams["reading"]))
    )
    return Ceilings(copying=copying, reading=reading, flops=best)

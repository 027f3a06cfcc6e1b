"""The floor: the least time a case can take on a device, from what that device was measured to do."""

from pydantic import Field

from kernelwright.core.device import Ceilings
from kernelwright.core.frozen import Frozen


class Work(Frozen):
    """What a case must do whatever the algorithm: each input read once, each output written once."""

    bytes_read: int = Field(ge=0)
    """Compulsory bytes read."""
    bytes_written: int = Field(ge=0)
    """Compulsory bytes written."""
    flops: int = Field(ge=0)
    """Floating-point operations of the mathematical definition."""
    compute_class: str
    """Key of the matrix rate the FLOPs run at, such as `fp32`, `tf32`, `fp16`."""

    @property
    def bytes_moved(self) -> int:
        """Return all compulsory bytes."""
        return self.bytes_read + self.bytes_written


def memory_time_us(work: Work, ceilings: Ceilings) -> float:
    """Return the least time to move the bytes, between the read-only and the copy stream by the share written."""
    # One fixed cost for every mix: two would let the floor fall when more is read.
    copied = min(2 * work.bytes_written, work.bytes_moved)
    rest = work.bytes_moved - copied
    return ceilings.reading.fixed_us + (rest / ceilings.reading.rate + copied / ceilings.copying.rate) * 1e6


def floor_us(work: Work, ceilings: Ceilings) -> float:
    """Return the floor: a fixed cost plus the longer of moving the bytes and doing the arithmetic."""
    memory = memory_time_us(work, ceilings)
    rate = ceilings.flops.get(work.compute_class)
    if not rate:
        return memory
    return max(memory, ceilings.reading.fixed_us + work.flops / rate * 1e6)


def sol_score(time_us: float, floor: float, baseline_us: float) -> float:
    """Return 1 at the floor, 0.5 at the baseline, towards 0 for slower: 1 / (1 + (T - floor) / (T_base - floor)).

    A baseline already at the floor leaves nothing to win: the score is then 1 at the floor and 0 above it.
    """
    above, room = max(0.0, time_us - floor), baseline_us - floor
    if room <= 0:
        return 1.0 if above == 0 else 0.0
    return 1 / (1 + above / room)

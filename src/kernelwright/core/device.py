"""`Device`: what the hardware is and what it was measured to do."""

from enum import StrEnum

from pydantic import Field

from kernelwright.core.frozen import Frozen, Noun


class DeviceKind(StrEnum):
    """Families of hardware a kernel can be written for."""

    CPU = "cpu"
    """The host's own cores."""
    CUDA = "cuda"
    """An NVIDIA GPU."""
    ROCM = "rocm"
    """An AMD GPU."""


class Ceiling(Frozen):
    """A straight line through measured times: a fixed cost and a rate."""

    fixed_us: float = Field(ge=0)
    """Time of an empty transfer or product."""
    rate: float = Field(gt=0)
    """Units (bytes or FLOPs) per second beyond the fixed cost."""

    def time_us(self, units: float) -> float:
        """Return the least time for that many units."""
        return self.fixed_us + units / self.rate * 1e6


class Ceilings(Frozen):
    """What the device itself was measured to reach."""

    copying: Ceiling
    """Streams that read and write alike."""
    reading: Ceiling
    """Streams that only read."""
    flops: dict[str, float] = Field(default_factory=dict)
    """Matrix FLOP/s by compute class."""


class Device(Noun):
    """One device of one machine, named by its driver."""

    kind: DeviceKind
    """Which family."""
    name: str
    """The driver's own name."""
    arch: str
    """Target name of the compilers: sm_90, gfx942, x86_64."""
    index: int = 0
    """Number on this machine."""
    driver: str = ""
    """Driver or kernel version."""
    units: int = Field(ge=1)
    """Multiprocessors, or hardware threads of a CPU."""
    memory_bytes: int = Field(ge=0)
    """Memory a kernel can address."""
    cache_bytes: int = Field(ge=0, default=0)
    """Last-level cache: buffers must exceed it to be cold."""
    shared_bytes: int = Field(ge=0, default=0)
    """Shared memory one block may ask for."""

    @property
    def title(self) -> str:
        """Return a short human name such as `cuda:0 (NVIDIA H200)`."""
        return f"{self.kind.value}:{self.index} ({self.name})"

"""`Timeline`: where inside its kernels a call spends its time, step by step, as the kernels wrote it down."""

from pydantic import Field

from kernelwright.core.frozen import Frozen


class Step(Frozen):
    """One kind of step of a kernel, from one line of its source."""

    kind: str
    """load, tma load, wait, shared, dot, reduce, store, atomic, loop or kernel."""
    line: int = Field(ge=0)
    """Line of the candidate's file; 0 if the compiler does not say."""
    times: float = Field(ge=0)
    """How often a warp made it, on average."""
    cycles: float = Field(ge=0)
    """Clock cycles of a warp between its beginnings and its ends."""
    own_cycles: float = Field(ge=0)
    """Of them, in no other step inside it."""
    share: float = Field(ge=0, le=1)
    """Own cycles over those of the whole kernel."""


class KernelTimeline(Frozen):
    """One launch, seen by some of its blocks."""

    kernel: str
    """Its name in the source."""
    blocks: int = Field(ge=0)
    """Blocks looked at."""
    warps: int = Field(ge=0)
    """Warps in each that recorded anything."""
    cycles: float = Field(ge=0)
    """Clock cycles of a warp from its first record to its last, the median."""
    time_us: float = Field(ge=0)
    """Time of a block from its start to its end, the median."""
    lost: int = Field(default=0, ge=0)
    """Records that were overwritten by later ones."""
    steps: tuple[Step, ...] = ()
    """By own cycles, most first."""


class Timeline(Frozen):
    """All launches of a call."""

    label: str = ""
    """What ran, in words."""
    kernels: tuple[KernelTimeline, ...] = ()
    """In launch order."""
    reason: str = ""
    """Why there is none, in one line with the remedy."""

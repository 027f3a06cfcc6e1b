"""hardware -> profiled launcher: `Steady`, a file in the folder it is started with; back come only raw tool output."""

from typing import Literal

from pydantic import Field

from kernelwright.core.case import Case
from kernelwright.core.frozen import Frozen
from kernelwright.core.plan import LaunchPlan

ORDER = "steady.json"
"""Name of the order in the folder."""
CASE = "case.json"
"""Name of the case in a folder that inputs are drawn into."""
TRACE = "kernels.json"
"""Name of the file that a launcher without a profiler around it leaves its kernels' times in."""
SANDBOX = "sandbox.txt"
"""Name of the file in which a launcher says which layers of the sandbox are around it."""
RECORDED_BLOCKS = 32
"""Blocks of a launch whose records are handed over, spread evenly over the grid."""


def record_file(place: int) -> str:
    """Return the name of the file with what the launch at a place of the made ones recorded."""
    return f"records{place}.bin"


def input_file(place: int) -> str:
    """Return the name of the file with the storage of the input at a place of the case."""
    return f"input{place}.bin"


class SteadyKernel(Frozen):
    """One compiled kernel: files of the folder."""

    binary: str = Field(pattern=r"^[0-9a-zA-Z_.-]+$")
    """The device binary."""
    facts: str = Field(pattern=r"^[0-9a-zA-Z_.-]+$")
    """The JSON that says how to launch it."""


class Steady(Frozen):
    """A call to be repeated: first to warm up, then under the eyes of the profiler."""

    case: Case
    plan: LaunchPlan
    kernels: tuple[SteadyKernel, ...]
    """Per launch of the plan its kernel."""
    device: int = Field(ge=0)
    """Number of the GPU."""
    warm_up: int = Field(default=3, ge=1)
    """Calls nobody looks at."""
    calls: int = Field(default=3, ge=1)
    """Calls that are looked at."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Files of the folder with the storage of inputs, by name; floats without one are drawn where they lie."""
    tracer: Literal["outside", "torch", "inside"] = "outside"
    """Who looks: a profiler around the process, torch's own inside it, or the kernels themselves."""


class Traced(Frozen):
    """One kernel as torch's profiler saw it."""

    name: str
    time_us: float = Field(ge=0)


class Trace(Frozen):
    """What a launcher without a profiler around it found, in launch order."""

    tool: str
    kernels: tuple[Traced, ...]

"""judge -> nursery: `Spawn`, `Reap`; nursery -> judge: `Spawned`, `Reaped`. judge -> runner: `Job`, `Run`, `Close`,
`Collect`.

On a GPU also `Audit`, `DeviceJob`, `Time`, `Overlap`, `Capture`, `Replay`, `Leave`. A runner answers only with the
16-byte replies of `core/frames`.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kernelwright.core.case import Case
from kernelwright.core.frozen import Frozen
from kernelwright.core.plan import LaunchPlan

LOT_BYTES = 2
"""Of the number of a call that is drawn."""


class Region(Frozen):
    """Where one tensor of one call lies: pages of a slab, with unmapped guard pages put around them."""

    slab: Literal["inputs", "outputs"]
    offset: int = Field(ge=0)
    """First byte in the slab, a multiple of the page size."""
    length: int = Field(ge=0)
    """Bytes mapped, a multiple of the page size."""
    start: int = Field(ge=0)
    """Byte inside the region where the tensor's storage starts."""


class Call(Frozen):
    """One call of the kernel."""

    case: int = Field(ge=0)
    """Index into the job's cases."""
    regions: dict[str, Region]
    """Where each tensor lies, by name."""


class Job(Frozen):
    """All a runner is told: what to load and where the buffers are."""

    type: Literal["job"] = "job"
    backend: str
    cases: tuple[Case, ...]
    calls: tuple[Call, ...]
    device: int | None = None
    """Number of the GPU whose memory the buffers lie in; None on a CPU."""
    input_bytes: int = Field(default=0, ge=0)
    output_bytes: int = Field(default=0, ge=0)
    """Sizes of the two there."""


class Run(Frozen):
    """Execute calls first .. first + count - 1, in order, or those named, or those drawn."""

    type: Literal["run"] = "run"
    first: int = Field(default=0, ge=0)
    count: int = Field(default=0, ge=0)
    calls: tuple[int, ...] = ()
    """In this order, instead."""
    drawn: int = Field(default=0, ge=0)
    """So many, instead, whose numbers come by a pipe, each read when its turn comes: none is in memory before."""
    number: int = Field(default=0, ge=0)
    """Echoed in the reply."""


class Close(Frozen):
    """Refuse every access to the inputs of these calls, and allow it to those of all others; on a CPU."""

    type: Literal["close"] = "close"
    calls: tuple[int, ...]
    number: int = Field(default=0, ge=0)


class Collect(Frozen):
    """Copy what the last batch returned (tier B) into the output buffers; outside every timed span."""

    type: Literal["collect"] = "collect"
    number: int = Field(ge=0)


class Audit(Frozen):
    """Execute a call and look whose kernels the GPU ran; host code only."""

    type: Literal["audit"] = "audit"
    call: int = Field(ge=0)
    number: int = Field(default=0, ge=0)


class DeviceJob(Frozen):
    """All a GPU runner is told: plans and the folder of compiled kernels."""

    type: Literal["device_job"] = "device_job"
    index: int = Field(ge=0)
    """Number of the GPU."""
    folder: str
    """Where the compiled kernels lie, by unit."""
    cases: tuple[Case, ...]
    calls: tuple[Call, ...]
    plans: tuple[LaunchPlan | None, ...]
    """Per case what to launch; None for a case only baselines run."""
    input_bytes: tuple[int, ...] = Field(min_length=1)
    """Sizes of the allocations all inputs lie in, handed over as descriptors: one, or one for every call."""
    output_bytes: int = Field(ge=0)
    """Size of the one all outputs lie in, the last descriptor."""


class TimedArm(Frozen):
    """One side of a timing: a tier-A candidate's plan, or a baseline of a trusted origin."""

    name: str
    kind: Literal["plan", "eager", "compiled"]
    plan: LaunchPlan | None = None
    """What a tier-A candidate launches for the job's one case."""
    folder: str = ""
    """Where its compiled kernels lie."""
    source: str = ""
    """Source of a baseline with `kernel_fn`."""
    mode: str = "default"
    """Mode of torch.compile."""


class Time(Frozen):
    """Load an arm anew, capture calls of one that is loaded, replay what was captured: what is asked for of these.

    Seconds go into the times slab.
    """

    type: Literal["time"] = "time"
    load: TimedArm | None = None
    arm: int = Field(default=0, ge=0)
    """Its number: what is loaded takes the place of what had it."""
    calls: tuple[int, ...] = ()
    """The calls one graph makes, in this order; none leaves it as it is."""
    repeats: int = Field(default=1, ge=1)
    """How often the graph goes over its calls."""
    replays: int = Field(default=0, ge=0)
    """How often the graph is replayed."""
    number: int = Field(default=0, ge=0)


class Overlap(Frozen):
    """Execute calls on several streams at once, while the legacy default stream is blocked."""

    type: Literal["overlap"] = "overlap"
    warm: tuple[int, ...] = Field(min_length=1)
    """Per stream a call it makes before: what is loaded or compiled then does not wait for anything later."""
    lanes: tuple[tuple[int, ...], ...] = Field(min_length=1)
    """Per stream the calls it makes, in order."""
    blocked_ms: int = Field(ge=1)
    """How long the legacy default stream is blocked: all lanes must end before."""
    number: int = Field(default=0, ge=0)


class Capture(Frozen):
    """Capture a call in a graph and keep it."""

    type: Literal["capture"] = "capture"
    call: int = Field(ge=0)
    number: int = Field(default=0, ge=0)


class Replay(Frozen):
    """Replay the captured graph."""

    type: Literal["replay"] = "replay"
    is_aside: bool = False
    """Whether on a stream of its own."""
    number: int = Field(default=0, ge=0)


class Leave(Frozen):
    """Let go of the job, its kernels and its buffers; another job follows."""

    type: Literal["leave"] = "leave"
    number: int = Field(default=0, ge=0)


RunnerOrder = Annotated[
    Job | Run | Close | Collect | Audit | DeviceJob | Time | Overlap | Capture | Replay | Leave,
    Field(discriminator="type"),
]


RUNNER_ORDER: TypeAdapter[RunnerOrder] = TypeAdapter(RunnerOrder)


class Spawn(Frozen):
    """Ask the nursery for a fresh runner; its descriptors ride along."""

    type: Literal["spawn"] = "spawn"
    folder: str
    """Working folder of the runner, its own."""
    memory_bytes: int = Field(default=8 << 30, ge=0)
    """How much it may allocate on top of what it is born with; 0 sets no limit, because a GPU's driver reserves
    addresses without end."""
    kind: Literal["runner", "launcher"] = "runner"
    """What to be: a candidate's own process, or the trusted launcher of plans."""
    device: int = Field(default=0, ge=0)
    """The GPU a launcher gets ready on before it is given its job."""


class Reap(Frozen):
    """Ask the nursery how a runner ended; it is killed first if it still lives."""

    type: Literal["reap"] = "reap"
    pid: int


NurseryOrder = Annotated[Spawn | Reap, Field(discriminator="type")]


NURSERY_ORDER: TypeAdapter[NurseryOrder] = TypeAdapter(NurseryOrder)


class Spawned(Frozen):
    """A runner lives, and is shut in."""

    pid: int = Field(ge=0)
    """Its number as the judge counts; 0 if it died before it was shut in."""
    sandbox: str = ""
    """Names of the layers around it."""


class Reaped(Frozen):
    """How a runner ended, as `os.waitstatus_to_exitcode` tells it: negative for a signal."""

    exit_code: int
    peak_bytes: int = Field(default=0, ge=0)
    """Most memory it ever held."""


SPAWNED: TypeAdapter[Spawned] = TypeAdapter(Spawned)


REAPED: TypeAdapter[Reaped] = TypeAdapter(Reaped)

"""What the processes of one run say to each other, as frames of `core/frames`.

engine -> judge: `Evaluate`, `Compare`; judge -> engine: `Progress`, then `Evaluated`-like answers or `Fault`.
judge -> builder: `BuildRequest`; builder -> judge: `BuildReply`.
judge -> nursery: `Spawn`, `Reap`; nursery -> judge: `Spawned`, `Reaped`. judge -> runner: `Job`, `Run`, `Collect`;
runner -> judge: only the 16-byte replies of `core/frames`.
judge -> reference: `ReferenceRequest`; reference -> judge: `ReferenceDone`.
engine -> model: `TraceModel`, `VerifyModel`; model -> engine: `ModelTraced`, `ModelTimed` or `Fault`.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kernelwright.core.candidate import Candidate, ParamValue
from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.frozen import Frozen
from kernelwright.core.plan import KernelUnit, LaunchPlan
from kernelwright.core.ports import BuildResult
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Comparison, Evaluation, Profile, Status


class Progress(Frozen):
    """Something to show while an answer is being worked out."""

    type: Literal["progress"] = "progress"
    text: str


class Fault(Frozen):
    """A mistake of the user's or of ours; never a candidate's."""

    type: Literal["fault"] = "fault"
    error: str
    """Class name in `core.errors`, or the Python exception's."""
    message: str
    trace: str = ""
    """Traceback for --debug."""


class JudgeSettings(Frozen):
    """What the engine tells the judge once, when it starts."""

    type: Literal["settings"] = "settings"
    threads: int = Field(ge=1)
    max_pairs: int = Field(ge=1)
    alpha: float = Field(gt=0, lt=1)
    hidden_shapes: int = Field(ge=0)
    cache_folder: str
    """Where built artefacts are kept between runs."""
    blob_folder: str
    """Where the artefacts and logs of this run are kept."""


class Evaluate(Frozen):
    """Ask for a verdict."""

    type: Literal["evaluate"] = "evaluate"
    problem: Problem
    candidate: Candidate
    profile: Profile


class Compare(Frozen):
    """Ask for a paired comparison."""

    type: Literal["compare"] = "compare"
    problem: Problem
    incumbent: Candidate
    challenger: Candidate


class EvaluationAnswer(Frozen):
    """The verdict."""

    type: Literal["evaluation"] = "evaluation"
    evaluation: Evaluation


class ComparisonAnswer(Frozen):
    """The comparison."""

    type: Literal["comparison"] = "comparison"
    comparison: Comparison


class Disqualified(Frozen):
    """A candidate that passed every stage failed while it was being timed."""

    type: Literal["disqualified"] = "disqualified"
    status: Status
    reason: str


JudgeRequest = Annotated[JudgeSettings | Evaluate | Compare, Field(discriminator="type")]
JUDGE_REQUEST: TypeAdapter[JudgeRequest] = TypeAdapter(JudgeRequest)
JudgeAnswer = Annotated[
    Progress | Fault | EvaluationAnswer | ComparisonAnswer | Disqualified, Field(discriminator="type")
]
JUDGE_ANSWER: TypeAdapter[JudgeAnswer] = TypeAdapter(JudgeAnswer)


class BuildRequest(Frozen):
    """Ask the builder for an artefact."""

    backend: str
    source: str
    folder: str
    values: dict[str, ParamValue] = Field(default_factory=dict)
    """Parameters bound at build time (tier B)."""
    units: tuple[KernelUnit, ...] = ()
    """Kernels to compile (tier A)."""
    target: str = ""
    """Architecture to compile for (tier A)."""


class BuildReply(Frozen):
    """One result (tier B), or one per unit in order (tier A)."""

    results: tuple[BuildResult, ...]


BUILD_REQUEST: TypeAdapter[BuildRequest] = TypeAdapter(BuildRequest)
BUILD_REPLY: TypeAdapter[BuildReply] = TypeAdapter(BuildReply)


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


class Run(Frozen):
    """Execute calls first .. first + count - 1, in order."""

    type: Literal["run"] = "run"
    first: int = Field(ge=0)
    count: int = Field(ge=0)
    number: int = Field(ge=0)
    """Echoed in the reply."""


class Collect(Frozen):
    """Copy what the last batch returned (tier B) into the output buffers; outside every timed span."""

    type: Literal["collect"] = "collect"
    number: int = Field(ge=0)


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
    """Time arms in captured graphs over all calls of one case, interleaved; seconds go into the third slab."""

    type: Literal["time"] = "time"
    case: int = Field(ge=0)
    """Index into the job's cases."""
    arms: tuple[TimedArm, ...]
    rounds: int = Field(ge=1)
    repeats: int = Field(ge=1)
    """How often one graph goes over all calls: short kernels need many to drown the launch of the graph itself."""
    seed: int
    number: int = Field(default=0, ge=0)


RunnerOrder = Annotated[Job | Run | Collect | DeviceJob | Time, Field(discriminator="type")]
RUNNER_ORDER: TypeAdapter[RunnerOrder] = TypeAdapter(RunnerOrder)


class Spawn(Frozen):
    """Ask the nursery for a fresh runner; five descriptors ride along."""

    type: Literal["spawn"] = "spawn"
    folder: str
    """Working folder of the runner, its own."""


class Reap(Frozen):
    """Ask the nursery how a runner ended; it is killed first if it still lives."""

    type: Literal["reap"] = "reap"
    pid: int


NurseryOrder = Annotated[Spawn | Reap, Field(discriminator="type")]
NURSERY_ORDER: TypeAdapter[NurseryOrder] = TypeAdapter(NurseryOrder)


class Spawned(Frozen):
    """A runner lives."""

    pid: int


class Reaped(Frozen):
    """How a runner ended, as `os.waitstatus_to_exitcode` tells it: negative for a signal."""

    exit_code: int


SPAWNED: TypeAdapter[Spawned] = TypeAdapter(Spawned)
REAPED: TypeAdapter[Reaped] = TypeAdapter(Reaped)


class ReferenceRequest(Frozen):
    """Ask the reference for one call's answers; input and result slabs ride along as descriptors."""

    op: str
    reference: str | None
    case: Case
    regions: dict[str, Region]
    device: str = "cpu"
    """Where the framework's own answer is computed: the device the problem is about."""
    results: tuple[TensorSpec, ...]
    """Per output: the float64 answer, the framework's answer, the error scale, one after the other in the slab."""


class ReferenceDone(Frozen):
    """The answers are in the slab."""

    error: str | None = None
    """What the reference raised, if it did."""


REFERENCE_REQUEST: TypeAdapter[ReferenceRequest] = TypeAdapter(ReferenceRequest)
REFERENCE_DONE: TypeAdapter[ReferenceDone] = TypeAdapter(ReferenceDone)


class TraceModel(Frozen):
    """Ask the model process where a model spends its time."""

    type: Literal["trace"] = "trace"
    spec: str
    threads: int = Field(ge=1)


class FoundRegion(Frozen):
    """A region of the model that is a known op."""

    case: Case
    count: int = Field(ge=1)
    share: float = Field(ge=0, le=1)


class ModelTraced(Frozen):
    """What the model consists of, as far as it is known."""

    type: Literal["traced"] = "traced"
    regions: tuple[FoundRegion, ...]
    forward_us: float = Field(gt=0)
    """Median time of one forward call."""
    graphs: int
    """Graphs dynamo captured; more than one means graph breaks."""


class Winner(Frozen):
    """A certified kernel to be put into the model."""

    problem_hash: str
    candidate_hash: str
    backend: str
    case: Case
    artefact: str
    """Path of the artefact."""
    artefact_hash: str
    """Its content hash; the model process checks it before loading."""


class VerifyModel(Frozen):
    """Ask a fresh model process to run the model with and without the winners."""

    type: Literal["verify"] = "verify"
    spec: str
    threads: int = Field(ge=1)
    winners: tuple[Winner, ...]
    rounds: int = Field(ge=1)
    seed: int


class ModelTimed(Frozen):
    """Raw end-to-end times of one process and how far the outputs drift."""

    type: Literal["timed"] = "timed"
    eager_us: tuple[float, ...]
    """The model as the user runs it."""
    captured_us: tuple[float, ...]
    """The same graph the winners were put into, without them: what capture alone gains is not credited to them."""
    spliced_us: tuple[float, ...]
    """The graph with the winners."""
    original_error: float = Field(ge=0)
    """rms error of the original against float64."""
    spliced_error: float = Field(ge=0)
    """rms error of the spliced model against float64."""
    spliced_calls: int = Field(ge=0)
    fallbacks: int = Field(ge=0)


ModelRequest = Annotated[TraceModel | VerifyModel, Field(discriminator="type")]
MODEL_REQUEST: TypeAdapter[ModelRequest] = TypeAdapter(ModelRequest)
ModelAnswer = Annotated[Progress | Fault | ModelTraced | ModelTimed, Field(discriminator="type")]
MODEL_ANSWER: TypeAdapter[ModelAnswer] = TypeAdapter(ModelAnswer)

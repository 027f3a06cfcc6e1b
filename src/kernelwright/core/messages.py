"""What the processes of one run say to each other, as frames of `core/frames`.

engine -> judge: `Describe`, `Evaluate`, `Compare`; judge -> engine: `Progress`, then an answer or `Fault`.
judge -> builder: `BuildRequest`; builder -> judge: `Enclosed`, then `BuildReply`.
judge -> nursery: `Spawn`, `Reap`; nursery -> judge: `Spawned`, `Reaped`. judge -> runner: `Job`, `Run`, `Collect`,
on a GPU also `Overlap`, `Capture`, `Replay`; runner -> judge: only the 16-byte replies of `core/frames`.
judge -> reference: `ReferenceRequest`, `Describe`; reference -> judge: `ReferenceDone`, `Described`.
engine -> model: `TraceModel`, `ProfileModel`, `ExtractModel`, `VerifyModel`; model -> engine: `Progress`, then
`ModelTraced`, `ModelProfiled`, `ModelExtracted`, `ModelTimed` or `Fault`.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kernelwright.core.account import Account, SetTimes
from kernelwright.core.account import Region as TimedRegion
from kernelwright.core.candidate import Candidate, ParamValue
from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.device import Ceilings
from kernelwright.core.frozen import Frozen
from kernelwright.core.model_spec import ModelOptions
from kernelwright.core.plan import KernelUnit, LaunchPlan
from kernelwright.core.ports import BuildResult
from kernelwright.core.problem import Problem
from kernelwright.core.region import Extracted
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
    ceilings: Ceilings | None = None
    """What the device was measured to reach; floors are known only with it."""
    gate_pairs: int = Field(default=14, ge=0)
    """Heats of a candidate against itself before anything is compared: 13 of one sign in a row would be proof."""
    guards_off: bool = False
    """Tests only: let what the static guards would refuse run, to see that it fails there too."""


class Evaluate(Frozen):
    """Ask for a verdict."""

    type: Literal["evaluate"] = "evaluate"
    problem: Problem
    candidate: Candidate
    profile: Profile


class Describe(Frozen):
    """Ask what a user's module is: the judge hands it on to the reference, the one process that may load it."""

    type: Literal["describe"] = "describe"
    reference: str
    """`file:PATH#SHA256` of a file with `Model`, `get_inputs` and `get_init_inputs`."""


class Compare(Frozen):
    """Ask for a paired comparison of challengers with the incumbent, all in the same heats."""

    type: Literal["compare"] = "compare"
    problem: Problem
    incumbent: Candidate
    challengers: tuple[Candidate, ...] = Field(min_length=1)
    earlier: tuple[Comparison | None, ...] = ()
    """Per challenger what was compared before: its evidence is continued, never started anew."""
    confirm: bool = False
    """Draw the heats from several separately started parents; what is published comes from here."""


class EvaluationAnswer(Frozen):
    """The verdict."""

    type: Literal["evaluation"] = "evaluation"
    evaluation: Evaluation


class Described(Frozen):
    """A user's module as a case."""

    type: Literal["described"] = "described"
    case: Case | None = None
    """Its recorded sizes; None if it cannot be judged."""
    init_inputs: str = "[]"
    """Arguments of its constructor, as Python writes them."""
    error: str = ""
    """Why it cannot be judged."""


class Disqualified(Frozen):
    """A candidate that passed every stage failed while it was being timed."""

    type: Literal["disqualified"] = "disqualified"
    candidate_hash: str
    """Which: the challenger, or the incumbent itself."""
    status: Status
    reason: str


class ComparisonAnswer(Frozen):
    """One result per challenger, in order."""

    type: Literal["comparison"] = "comparison"
    results: tuple[Comparison | Disqualified, ...]


JudgeRequest = Annotated[JudgeSettings | Describe | Evaluate | Compare, Field(discriminator="type")]
JUDGE_REQUEST: TypeAdapter[JudgeRequest] = TypeAdapter(JudgeRequest)
JudgeAnswer = Annotated[
    Progress | Fault | Described | EvaluationAnswer | ComparisonAnswer,
    Field(discriminator="type"),
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
    guards_off: bool = False
    """Tests only: build what the static guards of a tier-A language would refuse."""


class Enclosed(Frozen):
    """How a builder is shut in, told before it looks at a source: nothing that is built can have a say in it."""

    sandbox: str
    """Names of the layers in force."""


class BuildReply(Frozen):
    """One result (tier B), or one per unit in order (tier A)."""

    results: tuple[BuildResult, ...]


BUILD_REQUEST: TypeAdapter[BuildRequest] = TypeAdapter(BuildRequest)
ENCLOSED: TypeAdapter[Enclosed] = TypeAdapter(Enclosed)
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
    device: int | None = None
    """Number of the GPU whose memory the buffers lie in; None on a CPU."""
    input_bytes: int = Field(default=0, ge=0)
    output_bytes: int = Field(default=0, ge=0)
    """Sizes of the two there."""


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
    input_bytes: int = Field(ge=0)
    output_bytes: int = Field(ge=0)
    """Sizes of the judge's memory on the GPU, handed over as descriptors."""


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
    calls: tuple[int, ...] = Field(min_length=1)
    """The job's calls it runs, all of one case; buffers of its own, alike in content for every arm."""


class Time(Frozen):
    """Load the arms anew in the order given, capture each in a graph, replay them; seconds go into the times slab."""

    type: Literal["time"] = "time"
    arms: tuple[TimedArm, ...] = Field(min_length=1)
    order: tuple[int, ...] = Field(min_length=1)
    """Which arm each replay is of: there and back in random order, again and again."""
    repeats: int = Field(ge=1)
    """How often one graph goes over all calls: short kernels need many to drown the launch of the graph itself."""
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


RunnerOrder = Annotated[
    Job | Run | Collect | DeviceJob | Time | Overlap | Capture | Replay, Field(discriminator="type")
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


class StartBuilder(Frozen):
    """Ask the foundry for a fresh builder; its conversation and its log ride along as descriptors."""

    type: Literal["start_builder"] = "start_builder"
    backend: str = ""
    """Whose compilers it needs; empty for a builder that is only asked how it is shut in."""
    folder: str
    """Working folder of the builder, its own."""


FoundryOrder = Annotated[StartBuilder | Reap, Field(discriminator="type")]
FOUNDRY_ORDER: TypeAdapter[FoundryOrder] = TypeAdapter(FoundryOrder)


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


RESULT_ALIGNMENT = 16


def result_offsets(specs: tuple[TensorSpec, ...]) -> tuple[int, ...]:
    """Return where each result lies in its slab, and behind the last one the size of the whole."""
    ends = [0]
    for spec in specs:
        ends.append(ends[-1] + -(-spec.nbytes // RESULT_ALIGNMENT) * RESULT_ALIGNMENT)
    return tuple(ends)


class ReferenceRequest(Frozen):
    """Ask the reference for one call's answers; input and result slabs ride along as descriptors."""

    type: Literal["answer"] = "answer"
    op: str
    reference: str | None
    case: Case
    regions: dict[str, Region]
    device: str = "cpu"
    """Where the framework's own answer is computed: the device the problem is about."""
    results: tuple[TensorSpec, ...]
    """Per output: the float64 answer, the framework's answer, the error scale, in the slab at `result_offsets`."""
    input_bytes: int = Field(default=0, ge=0)
    result_bytes: int = Field(default=0, ge=0)
    """Sizes of the two, where they lie in the memory of a GPU."""


class ReferenceDone(Frozen):
    """The answers are in the slab."""

    error: str | None = None
    """What the reference raised, if it did."""


ReferenceOrder = Annotated[ReferenceRequest | Describe, Field(discriminator="type")]
REFERENCE_ORDER: TypeAdapter[ReferenceOrder] = TypeAdapter(ReferenceOrder)
REFERENCE_DONE: TypeAdapter[ReferenceDone] = TypeAdapter(ReferenceDone)
DESCRIBED: TypeAdapter[Described] = TypeAdapter(Described)


class TraceModel(Frozen):
    """Ask the model process where a model spends its time."""

    type: Literal["trace"] = "trace"
    spec: str
    options: ModelOptions = ModelOptions()
    """Inputs, element type, device and mode."""
    threads: int = Field(ge=1)


class ProfileModel(Frozen):
    """Ask the model process where a model's time goes, region by region."""

    type: Literal["profile"] = "profile"
    spec: str
    options: ModelOptions = ModelOptions()
    """Inputs, element type, device and mode."""
    threads: int = Field(ge=1)
    with_compiled: bool = True
    """Whether torch.compile is timed too."""
    seconds: float = Field(default=10.0, gt=0)
    """Longest measurement of one set; on a quiet machine a fraction of it is enough."""
    trace_file: str | None = None
    """Where a Chrome trace goes."""
    memory_file: str | None = None
    """Where a snapshot of GPU memory goes."""


class ExtractModel(Frozen):
    """Ask the model process for the problems a model consists of."""

    type: Literal["extract"] = "extract"
    spec: str
    options: ModelOptions = ModelOptions()
    """Inputs, element type, device and mode."""
    threads: int = Field(ge=1)


class FoundRegion(Frozen):
    """A region of the model that is a known op."""

    case: Case
    count: int = Field(ge=1)
    share: float = Field(ge=0, le=1)


class GraphBreak(Frozen):
    """Where a model could not be captured in one piece."""

    reason: str
    where: str
    """File and line in the model's code."""


class ModelTraced(Frozen):
    """What the model consists of, as far as it is known."""

    type: Literal["traced"] = "traced"
    regions: tuple[FoundRegion, ...]
    forward_us: float = Field(gt=0)
    """Median time of one forward call."""
    graphs: int
    """Graphs dynamo captured; more than one means graph breaks."""
    breaks: tuple[GraphBreak, ...] = ()


class ModelProfiled(Frozen):
    """Where a model's time goes."""

    type: Literal["profiled"] = "profiled"
    device: str
    """Where it ran: `cpu`, `cuda:0`."""
    sets: tuple[SetTimes, ...] = Field(min_length=1)
    """Every way it is called, timed."""
    regions: tuple[TimedRegion, ...]
    """All regions of its captured graphs, disjoint and complete."""
    eager: Account
    """As the user wrote it; its gaps are what the regions leave of the time."""
    captured: Account
    """Its captured graph."""
    compiled: Account | None
    """Under torch.compile; its gaps are what the kernels leave of the time. None if it failed."""
    kernels: int = Field(ge=0)
    """Kernels torch.compile runs."""
    linked: int = Field(ge=0)
    """Of these the ones whose origin in the captured graph is known."""
    compile_s: float = Field(ge=0)
    """How long torch.compile took to compile."""
    compile_error: str = ""
    """Why there is no compiled model."""
    operations: int = Field(ge=0)
    graphs: int = Field(ge=0)
    breaks: tuple[GraphBreak, ...] = ()
    notes: tuple[str, ...] = ()
    """What was written where."""


class ModelExtracted(Frozen):
    """The problems a model consists of, overlapping ones included."""

    type: Literal["extracted"] = "extracted"
    problems: tuple[Extracted, ...]
    nodes: int = Field(ge=0)
    """Operations in all graphs."""
    graphs: int = Field(ge=0)
    breaks: tuple[GraphBreak, ...] = ()


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
    options: ModelOptions = ModelOptions()
    """Inputs, element type, device and mode."""
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


ModelRequest = Annotated[TraceModel | ProfileModel | ExtractModel | VerifyModel, Field(discriminator="type")]
MODEL_REQUEST: TypeAdapter[ModelRequest] = TypeAdapter(ModelRequest)
ModelAnswer = Annotated[
    Progress | Fault | ModelTraced | ModelProfiled | ModelExtracted | ModelTimed, Field(discriminator="type")
]
MODEL_ANSWER: TypeAdapter[ModelAnswer] = TypeAdapter(ModelAnswer)

"""engine -> model: `ProfileModel`, `ExtractModel`, `VerifyModel`; back: `Progress`, then an answer.

The answers are `ModelProfiled`, `ModelExtracted`, `ModelTimed`, or `Fault`.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, model_validator

from kernelwright.core.account import Account, SetTimes
from kernelwright.core.account import Region as TimedRegion
from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.frozen import Frozen
from kernelwright.core.messages.progress import Fault, Progress
from kernelwright.core.model_spec import ModelOptions
from kernelwright.core.plan import LaunchPlan
from kernelwright.core.region import Extracted


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
    cache_folder: str | None = None
    """Where torch.compile keeps what it compiled, for the next process; None means nowhere."""


class ExtractModel(Frozen):
    """Ask the model process for the problems a model consists of."""

    type: Literal["extract"] = "extract"
    spec: str
    options: ModelOptions = ModelOptions()
    """Inputs, element type, device and mode."""
    threads: int = Field(ge=1)
    target: Literal["", "cuda"] = ""
    """The kind of device that kernels of captured regions are written for; empty for the one the model is on."""


class GraphBreak(Frozen):
    """Where a model could not be captured in one piece."""

    reason: str
    where: str
    """File and line in the model's code."""


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


class WinnerUnit(Frozen):
    """One compiled kernel of a tier-A winner; the model process checks both files before loading."""

    key: str
    """The first 16 digits of the unit's hash: a launch finds its kernel by it."""
    binary: str
    """Path of the device binary."""
    binary_hash: str
    facts: str
    """Path of the JSON that says how to launch it."""
    facts_hash: str


class Winner(Frozen):
    """A certified kernel to be put into the model: a library (tier B), or a plan and its compiled kernels (tier A)."""

    problem_hash: str
    candidate_hash: str
    backend: str
    case: Case
    artefact: str = ""
    """Path of the library; empty for tier A."""
    artefact_hash: str = ""
    """Its content hash; the model process checks it before loading."""
    source: str = ""
    """The candidate's own text: under torch.compile a Triton kernel is compiled from it."""
    values: dict[str, ParamValue] = Field(default_factory=dict)
    """Parameters chosen for the case."""
    plan: LaunchPlan | None = None
    """What is launched for the case (tier A)."""
    units: tuple[WinnerUnit, ...] = ()
    """The kernels the plan launches (tier A)."""
    device: Device | None = None
    """Where it was certified: elsewhere it is not run."""
    region: str = ""
    """For op `graph` the region's file: a case alone does not say what is computed."""

    @model_validator(mode="after")
    def _is_one_tier(self) -> "Winner":
        if bool(self.artefact) == (self.plan is not None):
            raise ValueError(f"a winner of {self.case.label} needs a library or a plan, not both or neither")
        return self


class VerifyModel(Frozen):
    """Ask a fresh model process to run the model with and without the winners."""

    type: Literal["verify"] = "verify"
    spec: str
    options: ModelOptions = ModelOptions()
    """Inputs, element type, device and mode."""
    threads: int = Field(ge=1)
    winners: tuple[Winner, ...]
    folder: str = ""
    """Folder of drop-in kernels that the winners are read from instead, in the order of its manifest."""
    arms: tuple[tuple[int, ...], ...] = ()
    """Places of the winners that each spliced arm holds; none means one arm with all of them."""
    rounds: int = Field(ge=0)
    """Rounds timed; zero looks at the outputs only."""
    seed: int
    checked_inputs: int = Field(default=1, ge=1)
    """Different inputs of every set whose outputs are compared."""
    other_sizes: bool = False
    """Whether outputs are compared at other batch sizes and shorter named axes too."""
    with_compiled: bool = True
    """Whether torch.compile is an arm too: what it drifts by is the framework's own."""
    rest: Literal["eager", "inductor"] = "eager"
    """Who runs what is left of the captured graph, with winners and without."""
    cache_folder: str | None = None
    """Where torch.compile keeps what it compiled, for the next process; None means nowhere."""


class OutputCheck(Frozen):
    """How far the outputs of one spliced arm are from the model in higher precision, on one way of calling it."""

    arm: int = Field(ge=0)
    """Place of the arm."""
    inputs: str
    """The set of inputs, with the axis that was changed: `prefill`, `prefill, batch 2`."""
    elements: int = Field(ge=0)
    """Elements of these inputs: the smallest failing set is the one to look at."""
    output: str
    """Path of the worst output, such as `logits` or `[1].keys`."""
    error: float = Field(ge=0)
    """Relative rms error of that output."""
    own_error: float = Field(ge=0)
    """The framework's own: the larger of eager's and torch.compile's."""
    ratio: float = Field(ge=0)
    """One over the other."""
    allowed: float = Field(gt=0)
    """Largest ratio that is still noise, by how many elements there are."""
    problem: str = ""
    """What is wrong with it; empty if the outputs hold."""


class ModeTimes(Frozen):
    """Raw end-to-end times in one mode of launching, all arms interleaved: per round one number for every arm."""

    mode: Literal["plain", "graph"]
    """Called as it is, or replayed from a CUDA graph; the same for every arm."""
    eager_us: tuple[float, ...]
    """The model as the user runs it."""
    captured_us: tuple[float, ...]
    """The same graph the winners were put into, without them: what capture alone gains is not credited to them."""
    compiled_us: tuple[float, ...] = ()
    """Under torch.compile; empty if there is none."""
    spliced_us: tuple[tuple[float, ...], ...]
    """The graph with winners, per arm; one whose call raised, which a check says, has the captured graph's times."""


class ModelTimed(Frozen):
    """What one process found: raw times, how far the outputs drift, and what the winners did."""

    type: Literal["timed"] = "timed"
    modes: tuple[ModeTimes, ...] = ()
    checks: tuple[OutputCheck, ...]
    """Per arm and way of calling the model its worst output."""
    spliced_calls: tuple[int, ...]
    """Calls of winners, per arm."""
    fallbacks: tuple[int, ...]
    """Calls that a guard sent to the original code, per arm."""
    sites: tuple[tuple[str, ...], ...] = ()
    """Per winner the files and lines of the model it serves."""
    notes: tuple[str, ...] = ()
    """What could not be checked or timed, and why."""


ModelRequest = Annotated[ProfileModel | ExtractModel | VerifyModel, Field(discriminator="type")]


MODEL_REQUEST: TypeAdapter[ModelRequest] = TypeAdapter(ModelRequest)


ModelAnswer = Annotated[
    Progress | Fault | ModelProfiled | ModelExtracted | ModelTimed, Field(discriminator="type")
]


MODEL_ANSWER: TypeAdapter[ModelAnswer] = TypeAdapter(ModelAnswer)

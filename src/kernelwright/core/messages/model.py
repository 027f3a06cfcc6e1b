"""engine -> model: `TraceModel`, `ProfileModel`, `ExtractModel`, `VerifyModel`; back: `Progress`, then an answer.

The answers are `ModelTraced`, `ModelProfiled`, `ModelExtracted`, `ModelTimed`, or `Fault`.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kernelwright.core.account import Account, SetTimes
from kernelwright.core.account import Region as TimedRegion
from kernelwright.core.case import Case
from kernelwright.core.frozen import Frozen
from kernelwright.core.messages.common import Fault, Progress
from kernelwright.core.model_spec import ModelOptions
from kernelwright.core.region import Extracted


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

"""engine -> judge: `Prepare`, `Describe`, `Screen`, `Evaluate`, `Compare`, `CountCase`, `RecordCase`; back: `Progress`,
an answer or `Fault`.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, model_validator

from kernelwright.core.brief import Trial
from kernelwright.core.candidate import Candidate
from kernelwright.core.case import Case
from kernelwright.core.counters import CounterProfile
from kernelwright.core.device import Ceilings
from kernelwright.core.foreign import Visible
from kernelwright.core.frozen import Frozen
from kernelwright.core.messages.progress import Fault, Progress
from kernelwright.core.plan import LaunchPlan
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Comparison, Evaluation, Profile, Screening, Status


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
    device_wait_s: float = Field(default=600.0, ge=0)
    """How long to wait for a device that another process times on."""
    guards_off: bool = False
    """Tests only: let what the static guards would refuse run, to see that it fails there too."""
    audit_off: bool = False
    """Tests only: let machine code run that the audit would refuse, to see that the walls around the runner hold it."""


class Evaluate(Frozen):
    """Ask for a verdict."""

    type: Literal["evaluate"] = "evaluate"
    problem: Problem
    candidate: Candidate
    profile: Profile


class Prepare(Frozen):
    """Tell of a candidate that will be asked about next: it is built while the device is busy. Nothing is answered."""

    type: Literal["prepare"] = "prepare"
    problem: Problem
    candidate: Candidate


class Describe(Frozen):
    """Ask what a user's module is: the judge hands it on to the reference, the one process that may load it."""

    type: Literal["describe"] = "describe"
    reference: str
    """`file:PATH#SHA256` of a file with `Model`, `get_inputs` and `get_init_inputs`."""


class Screen(Frozen):
    """Ask for cheap looks at one candidate's source with several values, each on one case."""

    type: Literal["screen"] = "screen"
    problem: Problem
    candidate: Candidate
    trials: tuple[Trial, ...]
    """What to look at; named twice, it is measured twice."""

    @model_validator(mode="after")
    def _concern_one_candidate(self) -> "Screen":
        if strangers := {trial.candidate_hash for trial in self.trials} - {self.candidate.hash}:
            raise ValueError(f"trials of {sorted(strangers)} in a look at {self.candidate.hash}")
        return self


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


class CountCase(Frozen):
    """Ask for the counters of an accepted candidate on one case of its problem, on a CPU."""

    type: Literal["count"] = "count"
    problem: Problem
    candidate: Candidate
    case_hash: str
    """Which case."""


class RecordCase(Frozen):
    """Ask for copies of a candidate's kernels for one case that write down their own steps."""

    type: Literal["record"] = "record"
    problem: Problem
    candidate: Candidate
    case_hash: str
    """Which case."""


class EvaluationAnswer(Frozen):
    """The verdict."""

    type: Literal["evaluation"] = "evaluation"
    evaluation: Evaluation


class ScreeningAnswer(Frozen):
    """One look per trial, in order."""

    type: Literal["screenings"] = "screenings"
    screenings: tuple[Screening, ...]


class CounterAnswer(Frozen):
    """What was counted, or why nothing was."""

    type: Literal["counters"] = "counters"
    profile: CounterProfile


class RecordingAnswer(Frozen):
    """A plan of recording kernels."""

    type: Literal["recording"] = "recording"
    plan: LaunchPlan | None = None
    """What to launch; None if there is nothing."""
    artefacts: dict[str, str] = Field(default_factory=dict)
    """Files of its kernels by name, as they are kept beside those that were judged."""
    reason: Visible = ""
    """Why there is nothing."""


class Described(Frozen):
    """A user's module as a case."""

    type: Literal["described"] = "described"
    case: Case | None = None
    """Its recorded sizes; None if it cannot be judged."""
    init_inputs: str = "[]"
    """Arguments of its constructor, as Python writes them."""
    error: Visible = ""
    """Why it cannot be judged."""


class Disqualified(Frozen):
    """A candidate that passed every stage failed while it was being timed."""

    type: Literal["disqualified"] = "disqualified"
    candidate_hash: str
    """Which: the challenger, or the incumbent itself."""
    status: Status
    reason: Visible


class ComparisonAnswer(Frozen):
    """One result per challenger, in order."""

    type: Literal["comparison"] = "comparison"
    results: tuple[Comparison | Disqualified, ...]


JudgeRequest = Annotated[
    JudgeSettings | Prepare | Describe | Screen | Evaluate | Compare | CountCase | RecordCase,
    Field(discriminator="type"),
]


JUDGE_REQUEST: TypeAdapter[JudgeRequest] = TypeAdapter(JudgeRequest)


JudgeAnswer = Annotated[
    Progress
    | Fault
    | Described
    | ScreeningAnswer
    | EvaluationAnswer
    | ComparisonAnswer
    | CounterAnswer
    | RecordingAnswer,
    Field(discriminator="type"),
]


JUDGE_ANSWER: TypeAdapter[JudgeAnswer] = TypeAdapter(JudgeAnswer)

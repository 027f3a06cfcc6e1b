"""What the journal records. Append-only, and the only state: everything else is a fold over these events."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kernelwright.core.account import Against
from kernelwright.core.candidate import Candidate
from kernelwright.core.counters import CounterProfile
from kernelwright.core.device import Device
from kernelwright.core.diagnosis import Diagnosis
from kernelwright.core.exchange import Exchange
from kernelwright.core.expansion import Expansion
from kernelwright.core.frozen import Frozen, canonical_json, digest
from kernelwright.core.lesson import Document, Lesson, WarmStart
from kernelwright.core.problem import Problem
from kernelwright.core.remark import Remark
from kernelwright.core.verdict import Comparison, Decision, Evaluation, Screening

SCHEMA = 3
"""Version of the event bodies; a journal with a newer one is refused."""

GENESIS = "0" * 64
"""What the first event's hash chains to."""


class RunStarted(Frozen):
    """Event zero: with what the run began."""

    kind: Literal["run_started"] = "run_started"
    config: dict[str, object]
    """The resolved `RunConfig`."""
    versions: dict[str, str]
    """Versions of kernelwright, Python, torch, compilers."""
    device: Device


class RankedRegion(Frozen):
    """A region of the model, and what became of it."""

    name: str
    """Op, sizes and type in one word."""
    op: str
    count: int = Field(ge=1)
    """Places in the model."""
    share: float = Field(ge=0)
    """Share of the baseline's time."""
    gain: float = Field(ge=1)
    """End-to-end speed-up if it reached its floor."""
    skipped: str = ""
    """Why it is not worked on; empty if it is."""


class ModelRanked(Frozen):
    """The model was profiled: where its time goes under the baseline, and which regions are worked on."""

    kind: Literal["model_ranked"] = "model_ranked"
    against: Against
    total_us: float = Field(gt=0)
    """Time of an average call of the baseline."""
    eager_us: float = Field(gt=0)
    """The same under eager."""
    limit: float = Field(ge=1)
    """Speed-up with every region at its floor and no gaps."""
    regions: tuple[RankedRegion, ...]
    """Largest gain first; what computes nothing is left out."""


class ProblemFound(Frozen):
    """A problem entered the run."""

    kind: Literal["problem_found"] = "problem_found"
    problem: Problem


class CandidateProposed(Frozen):
    """A candidate entered the tree. Its source is in the journal itself, so a tree needs no blobs."""

    kind: Literal["candidate_proposed"] = "candidate_proposed"
    problem_hash: str
    candidate: Candidate


class ExpansionAsked(Frozen):
    """A strategy asked for an expansion."""

    kind: Literal["expansion_asked"] = "expansion_asked"
    strategy: str
    """Which, a file of `strategies/`."""
    expansion: Expansion


class ExpansionAnswered(Frozen):
    """An author answered an expansion: with new candidates, or with nothing new."""

    kind: Literal["expansion_answered"] = "expansion_answered"
    expansion: Expansion
    author: str
    """As `--author` names it."""
    candidates: tuple[str, ...] = ()
    """Hashes of what it proposed and the tree did not hold."""
    reason: str = ""
    """Why there is nothing new."""
    cancelled: bool = False
    """Whether nobody waited for the answer: another draft was certified first."""


class LlmAsked(Frozen):
    """A language model was asked for an expansion, or looked back on one; its prompt and reply are blobs.

    What was asked for an answer stands before it.
    """

    kind: Literal["llm_asked"] = "llm_asked"
    expansion: Expansion
    exchange: Exchange
    candidate_hash: str = ""
    """The judged candidate it was asked about; empty if it was asked for a new one."""


class Analysed(Frozen):
    """A language model was asked what a candidate waits for: once, for everybody who is to make it faster."""

    kind: Literal["analysed"] = "analysed"
    problem_hash: str
    candidate_hash: str
    agent: str
    """Who was asked."""
    diagnoses: tuple[Diagnosis, ...] = ()
    """What it said, its evidence checked; none if the rules' own diagnoses stand."""
    reason: str = ""
    """Why there are none."""


class Remarked(Frozen):
    """An author looked back on an attempt of its own: an entry of the shared memory."""

    kind: Literal["remarked"] = "remarked"
    remark: Remark


class SearchEscalated(Frozen):
    """Nothing was kept for a while: the search of a problem turns to bolder means."""

    kind: Literal["search_escalated"] = "search_escalated"
    problem_hash: str
    level: int = Field(ge=1)
    """How often it has been escalated."""
    reason: str
    left: str = ""
    """Language that is left alone from now on; empty for none."""


class ProblemEnded(Frozen):
    """The search of a problem stopped."""

    kind: Literal["problem_ended"] = "problem_ended"
    problem_hash: str
    rule: str
    """One word: which rule stopped it."""
    reason: str


class Screened(Frozen):
    """A cheap look was taken."""

    kind: Literal["screened"] = "screened"
    screening: Screening


class Evaluated(Frozen):
    """The judge gave a verdict."""

    kind: Literal["evaluated"] = "evaluated"
    evaluation: Evaluation


class Profiled(Frozen):
    """A parent of an expansion was put under a profiler, once in a run; the counters are in the journal itself."""

    kind: Literal["profiled"] = "profiled"
    problem_hash: str
    candidate_hash: str
    profile: CounterProfile


class Compared(Frozen):
    """The judge compared two candidates."""

    kind: Literal["compared"] = "compared"
    comparison: Comparison


class Decided(Frozen):
    """The gate kept or reverted."""

    kind: Literal["decided"] = "decided"
    decision: Decision


class LessonLearnt(Frozen):
    """A lesson was written."""

    kind: Literal["lesson_learnt"] = "lesson_learnt"
    lesson: Lesson


class KnowledgeGiven(Frozen):
    """What earlier runs and the user's folders gave a run: read once when it began, never again."""

    kind: Literal["knowledge_given"] = "knowledge_given"
    lessons: tuple[Lesson, ...] = ()
    """Lessons of earlier runs that apply to its problems, best first."""
    starts: tuple[WarmStart, ...] = ()
    """Earlier winners that are judged beside the seeds."""
    documents: tuple[Document, ...] = ()
    """Texts of the folders that were named."""


class WinnerTried(Frozen):
    """One more winner was put into the model, and stays or goes."""

    kind: Literal["winner_tried"] = "winner_tried"
    problem_hash: str
    candidate_hash: str
    beside: tuple[str, ...] = ()
    """Candidate hashes of the winners that were in the model before it."""
    kept: bool
    ratio: float = Field(gt=0)
    """Time of the model without it over time with it, end to end."""
    ci_low: float = Field(gt=0)
    ci_high: float = Field(gt=0)
    drift: float = Field(ge=0)
    """Error of the outputs with it against higher precision, relative to the framework's own."""
    reason: str


class ModelVerified(Frozen):
    """The model was run with the winners in place, against the original."""

    kind: Literal["model_verified"] = "model_verified"
    winners: dict[str, str]
    """Candidate hash by problem hash."""
    ratio: float = Field(gt=0)
    """Time of the same graph without the winners over time with them, end to end."""
    ci_low: float = Field(gt=0)
    ci_high: float = Field(gt=0)
    eager_ratio: float = Field(gt=0)
    """Time of the model as the user runs it over time with the winners."""
    eager_ci_low: float = Field(gt=0)
    eager_ci_high: float = Field(gt=0)
    compiled_ratio: float | None = Field(default=None, gt=0)
    """Time under torch.compile over time with the winners; None if there is none."""
    compiled_ci_low: float | None = Field(default=None, gt=0)
    compiled_ci_high: float | None = Field(default=None, gt=0)
    mode: str = "plain"
    """How all arms were launched: `plain`, or `graph` for a replayed CUDA graph."""
    drift: float = Field(ge=0)
    """Error of the spliced outputs against higher precision, relative to the framework's own."""
    fallbacks: int = Field(ge=0)
    """Calls that ran the original code because a guard did not hold."""
    notes: tuple[str, ...] = ()
    """What could not be checked or timed, and why."""
    shipped: bool
    """Whether the splice pays end to end and stays."""
    reason: str


class RunEnded(Frozen):
    """The run stopped, and why."""

    kind: Literal["run_ended"] = "run_ended"
    reason: str
    failed: bool = False
    """Whether something of ours broke, so that there is something to take up again."""


class Noted(Frozen):
    """A fallback, a degraded mode or anything else that must not be silent."""

    kind: Literal["noted"] = "noted"
    text: str


Body = Annotated[
    RunStarted
    | ModelRanked
    | ProblemFound
    | CandidateProposed
    | ExpansionAsked
    | ExpansionAnswered
    | LlmAsked
    | Analysed
    | Remarked
    | SearchEscalated
    | ProblemEnded
    | Screened
    | Evaluated
    | Profiled
    | Compared
    | Decided
    | LessonLearnt
    | KnowledgeGiven
    | WinnerTried
    | ModelVerified
    | RunEnded
    | Noted,
    Field(discriminator="kind"),
]

BODY: TypeAdapter[Body] = TypeAdapter(Body)


def problem_of(body: Body) -> str | None:
    """Return the hash of the problem an event is about, if it is about one."""
    match body:
        case ProblemFound(problem=problem):
            return problem.hash
        case ExpansionAsked(expansion=about) | ExpansionAnswered(expansion=about) | LlmAsked(expansion=about):
            return about.problem_hash
        case Screened(screening=about):
            return about.problem_hash
        case Evaluated(evaluation=about):
            return about.problem_hash
        case Compared(comparison=about):
            return about.problem_hash
        case Decided(decision=about):
            return about.problem_hash
        case Remarked(remark=about):
            return about.problem_hash
        case (
            CandidateProposed(problem_hash=key)
            | SearchEscalated(problem_hash=key)
            | ProblemEnded(problem_hash=key)
            | WinnerTried(problem_hash=key)
            | Profiled(problem_hash=key)
            | Analysed(problem_hash=key)
        ):
            return key
        case _:
            return None


class Event(Frozen):
    """One link of the chain."""

    seq: int = Field(ge=0)
    """Place in the run, from zero without gaps."""
    at: datetime
    """When it was appended, in UTC."""
    schema_version: int = SCHEMA
    """Version of the body's schema."""
    body: Body
    """What happened."""
    hash: str
    """Digest of the previous hash and this event."""


def chain_hash(previous: str, seq: int, at: str, schema: int, body: str) -> str:
    """Return the hash of an event given the stored text of its fields and the hash before it."""
    return digest(canonical_json([previous, seq, at, schema, body]))

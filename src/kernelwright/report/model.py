"""What a report says, as plain values: every artefact is written from this one reading of the journal."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from kernelwright.core.frozen import Frozen
from kernelwright.core.ledger import Ledger


class Fate(StrEnum):
    """What became of a candidate."""

    KEPT = "kept"
    """Proven faster, or a baseline that held the title."""
    REVERTED = "reverted"
    """Accepted and not proven faster, or outrun later."""
    FAILED = "failed"
    """Not accepted, or found out while it was timed."""
    OPEN = "open"
    """Not decided."""


class Interval(Frozen):
    """A ratio of times with its 95 % interval; above 1 is faster."""

    ratio: float
    low: float
    high: float


class Experiment(Frozen):
    """One candidate and what became of it."""

    number: int
    """Place among all proposals of the run, from zero."""
    at: datetime | None
    """When it was judged, or proposed if it was not."""
    hash: str
    parents: tuple[str, ...]
    """Hashes of the candidates of the same problem it was made from."""
    is_baseline: bool
    backend: str
    author: str
    note: str
    status: str
    """The judge's word; empty before its verdict."""
    fate: Fate
    reason: str
    """The gate's sentence."""
    certified_us: float | None
    speed: float | None
    """Time of the baseline over its own, along the comparisons; None without a certificate."""
    over_baseline: Interval | None
    """The direct comparison with the baseline, if there was one."""
    floor_fraction: float | None
    screenings: int


class Step(Frozen):
    """One verdict in the progress of a problem."""

    number: int
    """Place among the problem's verdicts, from one."""
    experiment: int
    fate: Fate
    is_baseline: bool
    speed: float | None
    best: float | None
    """Speed of whoever held the title then."""


class Point(Frozen):
    """A case on the roofline."""

    label: str
    intensity: float
    """FLOPs per byte that must be moved."""
    before: float | None
    """FLOP/s of the baseline."""
    after: float | None
    """FLOP/s of the winner; None if a baseline holds the title."""
    floor: float | None
    """FLOP/s at the floor, where the judge knows one."""
    compute_class: str


class Parameter(Frozen):
    """A parameter that the winner has otherwise than its seed."""

    name: str
    cases: str
    before: str
    after: str


class Change(Frozen):
    """The winner against the seed it descends from."""

    seed: str
    """Who that is; empty if there is nothing to compare."""
    words: str
    """What there is to see, in one sentence."""
    diff: str = ""
    """Unified diff of the sources."""
    parameters: tuple[Parameter, ...] = ()


class StageFact(Frozen):
    """A stage of the certificate."""

    name: str
    passed: bool
    seconds: float
    checked: int
    reason: str


class ComparisonFact(Frozen):
    """A comparison the certificate rests on."""

    incumbent: str
    outcome: str
    interval: Interval
    pairs: int
    starts: int
    evidence: float
    clock: str


class TimeFact(Frozen):
    """A certified time of one case."""

    case: str
    cold_us: float
    warm_us: float | None
    """With its inputs in the cache; None where nobody measures that."""
    floor_us: float | None
    floor_share: float | None
    sol_score: float | None
    """1 at the floor, 0.5 at the baseline; None where either is not known."""


class CertificateFact(Frozen):
    """What was proven of a winner."""

    profile: str
    status: str
    judge_version: str
    clock: str
    seconds: float
    hidden_shapes: int | None
    """Random shapes drawn for the evaluation, as set."""
    times: tuple[TimeFact, ...]
    stages: tuple[StageFact, ...]
    comparisons: tuple[ComparisonFact, ...]
    environment: dict[str, str]
    """Versions, flags and sandbox level the verdict rests on."""
    error: float | None
    """Error of the model's outputs with it, in units of the framework's own; None if it was never in the model."""


class ProblemFact(Frozen):
    """One problem: what was to be beaten, what beat it, what that is worth."""

    key: str
    name: str
    """The first case's label."""
    op: str
    cases: tuple[str, ...]
    count: int
    share: float
    baseline: str
    baseline_us: float | None
    winner: str
    """Empty if nothing holds the title."""
    is_won: bool
    """Whether the winner is no baseline."""
    winner_us: float | None
    gain: Interval | None
    """The winner's direct comparison with the baseline."""
    chained: float | None
    """Its speed along the comparisons, where there is no direct one."""
    in_place: float | None
    """Its speed over the way of running the model that the shares are of, which may not be the faster baseline."""
    floor_us: float | None
    floor_fraction: float | None
    is_installed: bool
    in_model: str
    """What came of putting it into the model; empty if that was not tried."""
    search_s: float | None
    calls_to_pay: float | None
    """Calls after which the search has paid for itself; None if it never does or is not known."""
    search: str
    """How the search went; empty if no strategy was asked."""
    stopped: str
    """Why its search stopped."""
    verdict: str
    """The gate's sentence on the winner, or on the fastest who tried."""
    steps: tuple[Step, ...]
    experiments: tuple[Experiment, ...]
    change: Change
    certificate: CertificateFact | None
    points: tuple[Point, ...]


class Slice(Frozen):
    """A part of the model's time, as shares of the time before."""

    name: str
    before: float = Field(ge=0)
    after: float = Field(ge=0)
    problem: int | None = None
    """Place of its problem in the report; None for what was not worked on."""


class LeftOut(Frozen):
    """A region that was not worked on."""

    name: str
    count: int
    share: float
    gain: float
    why: str


class EndToEnd(Frozen):
    """The whole model with the winners in place."""

    over_graph: Interval
    over_eager: Interval
    over_compiled: Interval | None
    is_shipped: bool
    drift: float
    fallbacks: int
    mode: str
    reason: str
    notes: tuple[str, ...]


class LessonFact(Frozen):
    """What was learnt."""

    claim: str
    where: str
    ratio: float | None
    evidence: int


class Roof(Frozen):
    """The ceilings of a device, and who says so."""

    source: str
    bandwidth: float
    """Bytes a second of a plain copy."""
    flops: dict[str, float]


class Count(Frozen):
    """How many candidates came to what."""

    candidates: int
    evaluations: int
    screenings: int
    kept: int
    reverted: int
    failed: int


class Report(Frozen):
    """A run, read once."""

    run_id: str
    model: str
    device: str
    headline: str
    is_ended: bool
    ended: str
    """Why the run stopped, or that it has not."""
    began_at: datetime | None
    last_at: datetime | None
    busy_s: float | None
    verify_s: float | None
    starts: int
    against: str
    """The way of running the model that is to be beaten; empty without a model."""
    total_us: float | None
    """An average call of the model under that."""
    limit: float | None
    """Speed-up with every region at its floor."""
    whole: EndToEnd | None
    count: Count
    problems: tuple[ProblemFact, ...]
    slices: tuple[Slice, ...]
    measured_after: Interval | None
    """Time of the whole with the winners over before, as measured end to end."""
    roof: Roof | None
    is_cached: bool
    """Whether a case's data stays in the last-level cache, where the memory ceiling does not bind."""
    lessons: tuple[LessonFact, ...]
    ledger: Ledger | None = None
    """What language models cost; None if none was asked."""
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    settings: dict[str, str]
    versions: dict[str, str]
    events: dict[str, int]
    """Events by kind."""
    spent_s: dict[str, float]
    """Seconds that passed before the events of a kind."""
    use: str
    """The line of Python that uses the result; empty if nothing is installed."""

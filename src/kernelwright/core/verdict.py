"""What the judge says: `Status`, stage results, `Timing`, `Screening`, `Evaluation`, `Comparison`; and the `Decision`.

Impossible states cannot be built: an `Evaluation` carries a certified timing only if every stage its profile
requires passed, and an accepted one always passed them all.
"""

from enum import StrEnum

from pydantic import Field, model_validator

from kernelwright.core.candidate import ParamValue
from kernelwright.core.foreign import Visible
from kernelwright.core.frozen import Frozen, Noun

JUDGE_VERSION = "9"
"""Bumped when a kept record could come out otherwise (docs/decisions/0012); two versions are never ranked together."""


class Status(StrEnum):
    """How an evaluation ended."""

    ACCEPTED = "accepted"
    """Every stage of the profile passed."""
    REFUSED = "refused"
    """The static guards refused the source, or the audit its machine code, before anything ran."""
    DELEGATION = "delegation"
    """The work is done by a library, not by a kernel of the candidate's own."""
    BUILD_FAILED = "build_failed"
    """The compiler refused the source; its message is in the log."""
    BUILD_TIMED_OUT = "build_timed_out"
    """The compiler did not finish in time."""
    TOO_BIG = "too_big"
    """The kernel asks for more shared memory, registers or threads than the device has."""
    UNSUPPORTED = "unsupported"
    """The candidate cleanly declined a case it must serve."""
    WRONG = "wrong"
    """An output is outside the error budget."""
    NOT_WRITTEN = "not_written"
    """Part of an output was never written."""
    INPUT_CHANGED = "input_changed"
    """An input was modified without being declared in-place."""
    OUT_OF_BOUNDS = "out_of_bounds"
    """Memory outside the buffers was touched."""
    NOT_DETERMINISTIC = "not_deterministic"
    """Repeated runs on the same inputs differ beyond the declared class."""
    STATEFUL = "stateful"
    """The answer depends on earlier calls."""
    CRASHED = "crashed"
    """The runner died."""
    TIMED_OUT = "timed_out"
    """The runner did not answer in time and was killed."""
    OUT_OF_MEMORY = "out_of_memory"
    """The candidate asked for more memory than the judge's own footprint model allows."""
    PROTOCOL = "protocol"
    """The runner sent something that is not in the protocol."""
    SANITIZER = "sanitizer"
    """A sanitizer reported an error."""
    WRONG_STREAM = "wrong_stream"
    """Work waits for a stream that is none of its own."""
    LEAK = "leak"
    """Memory, threads or descriptors grow with every call."""
    TIMING_SUSPECT = "timing_suspect"
    """Two clocks disagree about the candidate."""
    IMPOSSIBLE = "impossible"
    """Faster than the hardware can be."""
    UNTESTABLE = "untestable"
    """The problem's own cases cannot tell a right answer from a wrong one."""


class Stage(StrEnum):
    """What a profile checks, in order of cost."""

    GUARDS = "guards"
    """Size, encoding and static rules of the source."""
    BUILD = "build"
    """Source to artefact in the builder's sandbox."""
    SMOKE = "smoke"
    """Small cases in every dtype, outputs poisoned, inputs checked afterwards."""
    NULL_MODELS = "null_models"
    """The problem itself: answers that are none, such as zeros, must fail on its cases."""
    EXACTNESS = "exactness"
    """Inputs whose answer is known to the bit, or to a few roundings."""
    SHAPE_SWEEP = "shape_sweep"
    """The problem's own cases and fresh hidden shapes."""
    STABILITY = "stability"
    """Distributions that break unstable formulas; the error's growth with the length of a reduction."""
    SPECIAL_VALUES = "special_values"
    """NaN, infinities and -0.0 at the ends, at tile edges and at random: finite where float64 is, and only there."""
    SENSITIVITY = "sensitivity"
    """One element or scalar changed: the answer follows where it must and stays to the bit where it must not."""
    EDGE_CASES = "edge_cases"
    """Sizes 0 and 1, primes, tile sizes plus and minus one."""
    LAYOUT = "layout"
    """Odd base addresses, strided rows, transposed and broadcast tensors: right, or declined by name."""
    ALIASING = "aliasing"
    """Inputs that share their storage."""
    DETERMINISM = "determinism"
    """The same bits again in a fresh process over other memory."""
    STATE = "state"
    """The same bits after hundreds of mixed calls, at other addresses, with other content at the same address."""
    REBUILD = "rebuild"
    """A second build gives the same artefact, byte for byte."""
    SANITIZER = "sanitizer"
    """Small odd cases in a build that checks every memory access and every undefined operation."""
    BIG_INDEX = "big_index"
    """Tensors of more than 2^31 elements, checked at both ends and in between."""
    STREAMS = "streams"
    """On a GPU: two streams at once with different inputs, while the legacy default stream is blocked."""
    GRAPH_CAPTURE = "graph_capture"
    """On a GPU: one call in a captured graph, replayed with other inputs; the outputs follow them."""
    LONGEVITY = "longevity"
    """Thousands of calls of mixed shapes: what the process holds does not grow with them."""
    TIMING = "timing"
    """Certified times of every case, the timed outputs checked."""


class Profile(StrEnum):
    """How much is checked."""

    QUICK = "quick"
    """A screening in seconds; can never keep."""
    KEEP = "keep"
    """The certificate the search needs."""
    SHIP = "ship"
    """What is needed before anything is spliced or published."""


SHIP_ONLY = (
    *(Stage.REBUILD, Stage.SANITIZER),
    *(Stage.BIG_INDEX, Stage.STREAMS, Stage.GRAPH_CAPTURE, Stage.LONGEVITY),
)
"""The last audits: each costs seconds, and no search needs them."""
REQUIRED_STAGES: dict[Profile, tuple[Stage, ...]] = {
    Profile.QUICK: (Stage.GUARDS, Stage.BUILD, Stage.SMOKE),
    Profile.KEEP: tuple(stage for stage in Stage if stage not in SHIP_ONLY),
    Profile.SHIP: tuple(Stage),
}


class NullModel(StrEnum):
    """An answer that is none; a problem whose cases let one pass cannot be judged."""

    ZEROS = "zeros"
    """Nothing but zeros."""
    CONSTANT = "constant"
    """The mean of the answer to other inputs, everywhere."""
    PASSED_THROUGH = "passed_through"
    """An input of the same shape, untouched."""
    PREVIOUS = "previous"
    """The answer to other inputs."""
    PERMUTED_ROWS = "permuted_rows"
    """The right answer, its rows moved by one."""
    DROPPED_TILE = "dropped_tile"
    """The right answer, its last tile zero."""
    DROPPED_TERMS = "dropped_terms"
    """The answer to inputs of which half an axis was left out."""
    LOWER_PRECISION = "lower_precision"
    """The right answer in the next lower precision."""


class StageResult(Frozen):
    """What one stage found."""

    stage: Stage
    """Which stage."""
    passed: bool
    """Whether everything in it passed."""
    seconds: float = Field(ge=0)
    """Wall time it took."""
    checked: int = Field(ge=0, default=0)
    """How many cases were run."""
    reason: Visible = ""
    """Why it failed, or why there was nothing to check, in one sentence."""
    failing_case: str | None = None
    """Label of the smallest failing case."""
    failing_scalars: dict[str, bool | int | float] = Field(default_factory=dict)
    """Its scalars: with the label they give the case again."""


BEYOND_FLOOR = 1.02
"""Share of a floor from which a time is beyond it: floors are measured too, and good kernels reach 99.7 % of theirs."""


class CaseTiming(Frozen):
    """Certified time of one case."""

    case_hash: str
    """Which case."""
    label: str
    """Its human name."""
    median_us: float = Field(gt=0)
    """Median time of a call."""
    mad_us: float = Field(ge=0)
    """Median absolute deviation over rounds."""
    rounds: int = Field(ge=1)
    """How many rounds were timed."""
    floor_us: float | None = None
    """Least time the hardware allows, if known."""
    warm_us: float | None = None
    """Median time of a call whose inputs are still in the cache, where that regime is measured."""

    @property
    def floor_share(self) -> float | None:
        """Return the floor as a share of the time: 1 at the floor, above it where the call was faster."""
        return None if self.floor_us is None else self.floor_us / self.median_us


class Timing(Frozen):
    """Certified times: exist only behind a passed profile."""

    clock: str
    """Whose clock: `judge-slope` (tier B) or `launcher-events` (tier A)."""
    cases: tuple[CaseTiming, ...] = Field(min_length=1)
    """One entry per case of the problem."""

    @property
    def is_beyond_floor(self) -> bool:
        """Tell whether a case was faster than the device was measured to be, by more than measuring it may be off."""
        return any(one.floor_share is not None and one.floor_share > BEYOND_FLOOR for one in self.cases)


class Screening(Noun):
    """A cheap look at source, parameters and case; can never keep."""

    candidate_hash: str
    """What was looked at."""
    problem_hash: str
    """Of which problem."""
    values: dict[str, ParamValue]
    """Parameter values tried."""
    case_hash: str
    """On which case."""
    status: Status
    """How it ended; ACCEPTED means only that the smoke stage passed."""
    latency_us: float | None = None
    """A rough time, if it ran."""
    seconds: float = Field(ge=0, default=0)
    """Its part of the wall time of all that were taken together; no part of the identity."""

    def identity(self) -> object:
        """Return everything but what it took."""
        return self.model_dump(mode="json", exclude={"seconds"})


class Evaluation(Noun):
    """The verdict on one candidate under a profile."""

    candidate_hash: str
    """Whom it concerns."""
    problem_hash: str
    """What was asked."""
    device_hash: str
    """Where."""
    judge_version: str = JUDGE_VERSION
    """By which rules."""
    profile: Profile
    """How much was checked."""
    status: Status
    """The verdict."""
    stages: tuple[StageResult, ...]
    """What each stage found, in order, up to the first failure."""
    timing: Timing | None = None
    """Certified times; only if every required stage passed."""
    artefact_hashes: dict[str, str] = Field(default_factory=dict)
    """Blob hash of the built artefact by parameter hash: exactly what was judged."""
    resources: dict[str, dict[str, int]] = Field(default_factory=dict)
    """What the compiler told of each kernel of the problem's own cases, by the start of its unit's hash."""
    log_hash: str | None = None
    """Blob with the bounded log of compiler and runner."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Versions, flags and sandbox level the verdict rests on."""
    seconds: float = Field(ge=0, default=0)
    """Wall time of the whole evaluation."""

    def identity(self) -> object:
        """Return candidate, problem, device, judge version and profile."""
        return [
            self.candidate_hash,
            self.problem_hash,
            self.device_hash,
            self.judge_version,
            self.profile.value,
        ]

    @property
    def passed_all(self) -> bool:
        """Tell whether every stage the profile requires ran and passed."""
        passed = {result.stage for result in self.stages if result.passed}
        return passed.issuperset(REQUIRED_STAGES[self.profile])

    @property
    def failure(self) -> StageResult | None:
        """Return the stage that stopped the evaluation, if one did."""
        return next((result for result in self.stages if not result.passed), None)

    @model_validator(mode="after")
    def _no_impossible_state(self) -> "Evaluation":
        if len({result.stage for result in self.stages}) != len(self.stages):
            raise ValueError("a stage appears twice in an evaluation")
        if False in [result.passed for result in self.stages[:-1]]:
            raise ValueError("an evaluation stops at the first failed stage")
        if self.status is Status.ACCEPTED and not self.passed_all:
            raise ValueError(f"accepted under {self.profile.value!r} without passing every required stage")
        if self.timing is not None and self.status is not Status.ACCEPTED:
            raise ValueError(f"a candidate that is {self.status.value!r} has no certified timing")
        if self.timing is not None and self.profile is Profile.QUICK:  # accepted: every stage has passed
            raise ValueError("a certified timing needs every required stage of `keep` or `ship` passed")
        return self


class Outcome(StrEnum):
    """How a comparison ended."""

    FASTER = "faster"
    """Proven faster by more than the smallest gain worth keeping."""
    NOT_FASTER = "not_faster"
    """Proven not to reach the gain we want to detect."""
    NOT_PROVEN = "not_proven"
    """Neither was proven within the rounds allowed."""


class CaseRatio(Frozen):
    """Incumbent time over challenger time on one case."""

    case_hash: str
    """Which case."""
    label: str
    """Its human name."""
    ratio: float = Field(gt=0)
    """Hodges-Lehmann estimate; above 1 the challenger is faster."""
    ci_low: float = Field(gt=0)
    """Lower end of the 95 % interval."""
    ci_high: float = Field(gt=0)
    """Upper end of the 95 % interval."""
    incumbent_us: float = Field(gt=0)
    """Median time of the incumbent in these rounds."""
    challenger_us: float = Field(gt=0)
    """Median time of the challenger in these rounds."""
    times: tuple[tuple[float, float], ...] = ()
    """Per pair what the two took: from here a later comparison of the same candidates goes on."""


class Comparison(Noun):
    """Challenger against incumbent in paired rounds; written by the judge, only read by the gate."""

    incumbent_hash: str
    """Who holds the title."""
    challenger_hash: str
    """Who wants it."""
    problem_hash: str
    """On which problem."""
    device_hash: str
    """Where."""
    judge_version: str = JUDGE_VERSION
    """By which rules."""
    alpha: float | None = None
    """The chance it was given to keep what is not faster; None in records from before this was noted."""
    max_pairs: int | None = None
    """The pairs after which it would have ended as not proven."""
    outcome: Outcome
    """What was proven."""
    ratio: float = Field(gt=0)
    """Weighted incumbent time over challenger time."""
    ci_low: float = Field(gt=0)
    """Lower end of the 95 % interval."""
    ci_high: float = Field(gt=0)
    """Upper end of the 95 % interval."""
    e_faster: float = Field(ge=0)
    """Evidence for `faster`; later rounds of the same artefacts continue the product."""
    e_not_faster: float = Field(ge=0)
    """Evidence for `not_faster`."""
    pairs: int = Field(ge=0)
    """Fresh process pairs compared: one sign each."""
    cases: tuple[CaseRatio, ...] = ()
    """Per-case ratios."""
    log_ratios: tuple[float, ...] = ()
    """One log ratio per pair, in order: what the evidence was computed from."""
    clock: str = "judge-slope"
    """Whose clock, the same on both arms."""
    starts: int = Field(default=1, ge=1)
    """Separately started parents the pairs were born from; with several, each must show the gain."""
    slower_case: str = ""
    """Label of the case that ended the comparison: proven slower by more than no case may be."""
    telemetry: dict[str, float] = Field(default_factory=dict)
    """Medians over the pairs of what the machine tells of itself: load, clocks, power, temperature."""
    readings: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    """The same heat by heat, in order: all of them up to 64, of more so many evenly chosen, first and last included."""
    seconds: float = Field(ge=0, default=0)
    """Its part of the time that all challengers of the race had the device together."""

    def identity(self) -> object:
        """Return both candidates, problem, device and judge version."""
        return [
            self.incumbent_hash,
            self.challenger_hash,
            self.problem_hash,
            self.device_hash,
            self.judge_version,
        ]

    @model_validator(mode="after")
    def _interval_is_ordered(self) -> "Comparison":
        if not self.ci_low <= self.ratio <= self.ci_high:
            raise ValueError(f"ratio {self.ratio} lies outside its interval [{self.ci_low}, {self.ci_high}]")
        if self.pairs != len(self.log_ratios):
            raise ValueError(f"{self.pairs} pairs but {len(self.log_ratios)} log ratios")
        return self


class Decision(Frozen):
    """Kept or reverted, and the sentence why, with the evidence."""

    problem_hash: str
    """Which problem."""
    candidate_hash: str
    """Whom it concerns."""
    kept: bool
    """Whether it is now the best of its problem."""
    reason: Visible
    """One sentence."""
    evaluation_hash: str
    """The verdict it rests on."""
    comparison_hash: str | None = None
    """The comparison it rests on; None for the first of a problem."""

"""The judge's clock: two candidates in fresh process pairs, timed by slopes of the judge's own wall clock.

One pair gives one sign:
1. Both runners are born in random order on the same inputs, each with outputs of its own.
2. Rounds are ABBA or BAAB by a coin. Between rounds every input changes, so nothing computed before is of use.
3. An arm runs a short and a long batch in random order; each call has buffers no other call of the round uses. The
   time of a call is the slope between the two: the cost of a round trip cancels.
4. After every timed batch pair, with the runner stopped, each call must have written its outputs and random ones are
   checked against float64: the timed outputs are the checked ones.
"""

import math
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import torch

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate
from kernelwright.core.case import Case, Distribution, TensorSpec
from kernelwright.core.stats import KeepRule, Standing, block_bootstrap, hodges_lehmann, standing
from kernelwright.core.verdict import CaseRatio, Comparison, Outcome, Status
from kernelwright.judge.arena import PAGE, Arena
from kernelwright.judge.children import ForkedRunner, Lost, Runner
from kernelwright.judge.execution import LOAD_SECONDS
from kernelwright.judge.stages import CALL_SECONDS, Bench, Failure, check_call

Result = TypeVar("Result")

BATCH_SECONDS = 0.020
MAX_CALLS = 512
ARENA_BYTES = 192 << 20
"""Per slab: three of them exist while a pair is timed."""
ROUNDS_PER_PAIR = 2
SPOT_CHECKS = 2
SUSPECT, SUSPECT_PAIRS = 0.25, 3
"""A slope below this share of the long batch's own mean, in so many pairs in a row, was bought by stalling in the short
one; a single pair may be the noise of a busy machine and is measured again."""
BASES = 8
"""Distinct input sets per pair; every call scales one of them by a random factor of its own."""


class TimingFailed(Exception):
    """A candidate failed while it was being timed."""

    def __init__(self, arm: str, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.arm = arm
        self.failure = failure


class Slope(NamedTuple):
    """What two batches say of one call."""

    call_us: float
    """From the difference of the two: the round trip cancels."""
    whole_us: float
    """From the long batch alone: an upper bound."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    name: str
    bench: Bench
    artefact: Path


def _artefact(bench: Bench, case: Case) -> Path:
    _, artefact = bench.builds.get(bench.candidate, bench.candidate.values_for(case.hash))
    assert artefact is not None, "only accepted candidates are timed"
    return artefact


class _Pair:
    """Two fresh runners on shared inputs for one case."""

    def __init__(self, case: Case, arms: tuple[Arm, Arm], calls: int, rng: random.Random) -> None:
        self.case, self.arms, self.calls, self.rng = case, arms, calls, rng
        self.arenas = (Arena([case], [0] * calls, rng), Arena([case], [0] * calls, rng))
        # Both arms read the very same input pages; only the outputs are their own.
        self.arenas[1].inputs.close()
        self.arenas[1].inputs = self.arenas[0].inputs
        arena = self.arenas[0]
        self.targets = [
            [(spec.name, arena.view(number, spec)) for spec in case.inputs] for number in range(calls)
        ]
        op = plugins.load("ops", case.op)
        self.bases = [op.make_inputs(case, Distribution.SIGNED, rng.getrandbits(62)) for _ in range(BASES)]

    def close(self) -> None:
        self.arenas[0].__exit__()
        self.arenas[1].outputs.close()

    def refill(self) -> None:
        """Give every call inputs nobody has seen: a base scaled (floats) or rolled (integers) at random."""
        for targets in self.targets:
            base = self.bases[self.rng.randrange(BASES)]
            for name, target in targets:
                source = base[name]
                if source.is_floating_point():
                    torch.mul(source, self.rng.uniform(0.5, 2.0), out=target)
                else:
                    target.copy_(source.roll(self.rng.randrange(max(1, source.numel()))))

    def measure(self) -> tuple[float, float]:
        """Return the median time of a call of either arm, in microseconds."""
        times: tuple[list[Slope], list[Slope]] = ([], [])
        order = [0, 1]
        self.rng.shuffle(order)
        with ExitStack() as stack:
            self.refill()
            runners = {side: stack.enter_context(self._born(side)) for side in order}
            for _ in range(ROUNDS_PER_PAIR):
                self.rng.shuffle(order)
                for half in (order, order[::-1]):
                    self.refill()
                    for side in half:
                        self.arenas[side].poison_outputs()
                        times[side].append(self._guarded(side, partial(self._slope, runners[side])))
                        self._check_timed(side)
        return self._agreed(0, times[0]), self._agreed(1, times[1])

    def _agreed(self, side: int, slopes: list[Slope]) -> float:
        """Return the median slope, unless the batch as a whole tells of far more time than the slope does."""
        call, whole = median(slope.call_us for slope in slopes), median(slope.whole_us for slope in slopes)
        if call < SUSPECT * whole:
            reason = f"the slope says {call:.1f} us a call, the batch as a whole {whole:.1f} us"
            raise TimingFailed(self.arms[side].name, Failure(Status.TIMING_SUSPECT, reason, self.case))
        return call

    def _born(self, side: int) -> Runner:
        """Return a fresh runner that is ready and has executed every call once."""
        arm = self.arms[side]
        backend, home = arm.bench.candidate.backend, arm.bench.home
        start = partial(ForkedRunner, arm.bench.nursery, arm.artefact, backend, self.arenas[side], home)
        runner = self._guarded(side, start)
        try:
            self._guarded(side, partial(self._warm_up, runner))
        except TimingFailed:
            runner.__exit__()
            raise
        return runner

    def _guarded(self, side: int, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except Lost as lost:
            raise TimingFailed(self.arms[side].name, Failure(lost.status, lost.reason, self.case)) from lost

    def _warm_up(self, runner: Runner) -> None:
        runner.ready(LOAD_SECONDS)
        runner.run(0, self.calls, CALL_SECONDS)
        runner.collect(CALL_SECONDS)

    def _slope(self, runner: Runner) -> Slope:
        """Time a short and a long batch over different calls, in random order with a random split."""
        short = self.rng.randrange(self.calls // 5, self.calls // 3 + 1)
        long = self.calls - short
        # Which calls are the short batch, and whether it comes first: two coins a candidate cannot see.
        batches = [(0, short), (short, long)] if self.rng.random() < 0.5 else [(0, long), (long, short)]
        self.rng.shuffle(batches)
        seconds = {}
        for first, count in batches:
            seconds[count] = runner.run(first, count, CALL_SECONDS)
            runner.collect(CALL_SECONDS)
        whole = seconds[long] / long
        slope = (seconds[long] - seconds[short]) / (long - short)
        # Noise can make a slope vanish; the whole long batch is then the honest upper bound.
        return Slope((slope if slope > 0 else whole) * 1e6, whole * 1e6)

    def _check_timed(self, side: int) -> None:
        """Check what was just timed: every call wrote all of its outputs, and random ones are right."""
        arena, arm = self.arenas[side], self.arms[side]
        for number in range(self.calls):
            for spec in self.case.outputs:
                if left := arena.unwritten(number, spec):
                    reason = f"{left} elements of {spec.name!r} never written in a timed call"
                    raise TimingFailed(arm.name, Failure(Status.NOT_WRITTEN, reason, self.case))
        for number in {self.rng.randrange(self.calls) for _ in range(SPOT_CHECKS)}:
            if failure := check_call(arm.bench, arena, number):
                raise TimingFailed(arm.name, failure)


def _measured(case: Case, arms: tuple[Arm, Arm], calls: int, rng: random.Random) -> tuple[float, float]:
    """Return the times of one fresh pair, in microseconds; a pair whose clocks disagree is measured again."""
    for attempt in range(SUSPECT_PAIRS):
        pair = _Pair(case, arms, calls, rng)
        try:
            return pair.measure()
        except TimingFailed as failed:
            if failed.failure.status is not Status.TIMING_SUSPECT or attempt + 1 == SUSPECT_PAIRS:
                raise
        finally:
            pair.close()
    raise AssertionError("unreachable: the last attempt returns or raises")


def calls_for(case: Case, bench: Bench, artefact: Path) -> int:
    """Return how many calls make a batch long enough, within the memory we allow."""
    largest = max(1, max(_slab_bytes(case.inputs), _slab_bytes(case.outputs)))
    most = max(8, min(MAX_CALLS, ARENA_BYTES // largest))
    op = plugins.load("ops", case.op)
    with Arena([case], [0] * 8, bench.rng) as arena:
        for number in range(8):
            arena.write_inputs(number, op.make_inputs(case, Distribution.SIGNED, bench.rng.getrandbits(62)))
        try:
            with ForkedRunner(bench.nursery, artefact, bench.candidate.backend, arena, bench.home) as runner:
                runner.ready(LOAD_SECONDS)
                runner.run(0, 8, CALL_SECONDS)
                seconds = min(runner.run(0, 8, CALL_SECONDS) for _ in range(3)) / 8
        except Lost as lost:
            raise TimingFailed("candidate", Failure(lost.status, lost.reason, case)) from lost
    return max(8, min(most, math.ceil(BATCH_SECONDS / max(seconds, 1e-7))))


def _slab_bytes(specs: tuple[TensorSpec, ...]) -> int:
    return sum(-(-spec.storage_elements * spec.dtype.itemsize // PAGE) * PAGE for spec in specs)


def compare(incumbent: Bench, challenger: Bench, rule: KeepRule) -> Comparison:
    """Return the paired comparison of two accepted candidates over all cases of their problem."""
    problem, rng = challenger.problem, challenger.rng
    total = sum(case.weight for case in problem.cases)
    sizes = {case.hash: calls_for(case, incumbent, _artefact(incumbent, case)) for case in problem.cases}
    per_case: dict[str, list[tuple[float, float]]] = {case.hash: [] for case in problem.cases}
    ratios: list[float] = []
    now = Standing(None, 1.0, 1.0)
    while now.outcome is None:
        weighted = 0.0
        for case in problem.cases:
            old_arm = Arm("incumbent", incumbent, _artefact(incumbent, case))
            new_arm = Arm("challenger", challenger, _artefact(challenger, case))
            old, new = _measured(case, (old_arm, new_arm), sizes[case.hash], rng)
            per_case[case.hash].append((old, new))
            weighted += case.weight / total * math.log(old / new)
        ratios.append(weighted)
        now = standing(ratios, rule)
        challenger.progress(
            f"pair {len(ratios)}: x{math.exp(median(ratios)):.2f}, evidence {now.e_faster:.3g}"
        )
    return _comparison(incumbent.candidate, challenger, ratios, per_case, now)


def _interval(values: list[float], rng: random.Random) -> tuple[float, float, float]:
    """Return estimate and 95 % interval of a list of log ratios, as ratios."""
    centre = hodges_lehmann(values)
    low, high = block_bootstrap([[value] for value in values], rng, statistic=median)
    return math.exp(centre), math.exp(min(low, centre)), math.exp(max(high, centre))


def _comparison(
    incumbent: Candidate,
    challenger: Bench,
    ratios: list[float],
    per_case: dict[str, list[tuple[float, float]]],
    now: Standing,
) -> Comparison:
    rng = random.Random(0)
    cases = []
    for case in challenger.problem.cases:
        pairs = per_case[case.hash]
        ratio, low, high = _interval([math.log(old / new) for old, new in pairs], rng)
        cases.append(
            CaseRatio(
                case_hash=case.hash,
                label=case.label,
                ratio=ratio,
                ci_low=low,
                ci_high=high,
                incumbent_us=median(old for old, _ in pairs),
                challenger_us=median(new for _, new in pairs),
            )
        )
    ratio, low, high = _interval(ratios, rng)
    return Comparison(
        incumbent_hash=incumbent.hash,
        challenger_hash=challenger.candidate.hash,
        problem_hash=challenger.problem.hash,
        device_hash=challenger.problem.device.hash,
        outcome=now.outcome or Outcome.NOT_PROVEN,
        ratio=ratio,
        ci_low=low,
        ci_high=high,
        e_faster=now.e_faster,
        e_not_faster=now.e_not_faster,
        pairs=len(ratios),
        cases=tuple(cases),
        log_ratios=tuple(ratios),
    )


def time_alone(bench: Bench, case: Case, rounds: int) -> list[float]:
    """Return times of one accepted candidate in fresh processes, in microseconds: its certified timing."""
    artefact = _artefact(bench, case)
    calls = calls_for(case, bench, artefact)
    times: list[float] = []
    for _ in range(rounds):
        arms = (Arm("first", bench, artefact), Arm("second", bench, artefact))
        times.extend(_measured(case, arms, calls, bench.rng))
    return times

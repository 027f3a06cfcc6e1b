"""A heat: fresh runners of several candidates on the same inputs, timed by slopes of the judge's own wall clock.

1. All runners are born in random order on the same inputs, each with outputs of its own.
2. Rounds go through the arms in a random order and back (ABBA or BAAB for two). Before every pass each input of each
   call becomes a mixture nobody has seen, so nothing computed before is of use; no runner is awake between that and
   its timed batches.
3. An arm runs a short and a long batch in random order; each call has buffers no other call of the round uses. The
   time of a call is the slope between the two: the cost of a round trip cancels.
4. After every timed batch pair, with the runner stopped, each call must have written its outputs. A random call and
   the one on which the arms disagree most are checked against float64: the timed outputs are the checked ones.
"""

import math
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import NamedTuple, TypeVar

from kernelwright.core import plugins
from kernelwright.core.candidate import Origin
from kernelwright.core.case import Case, Distribution, TensorSpec
from kernelwright.core.messages.runner import Close
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import PAGE, Arena, once
from kernelwright.judge.children import Lost, Runner, Service
from kernelwright.judge.execution import LOAD_SECONDS, device_job
from kernelwright.judge.fresh import Mixtures
from kernelwright.judge.passes import (
    SAMPLES,
    SPARED,
    Answered,
    Pass,
    dealt,
    spared_of,
    wrongly_answered,
    wrongly_written,
)
from kernelwright.judge.runners import ForkedRunner, launched, returns_outputs
from kernelwright.judge.stages import CALL_SECONDS, Bench, Failure

Result = TypeVar("Result")
Start = Callable[[Bench], Service]
"""One of several separate starts: tells from which parent a candidate's runners are born."""

BATCH_SECONDS = 0.020
"""What the short and the long batch of a pass should take together."""
MAX_CALLS = 512
USUAL_CALLS, FEWEST_CALLS = 8, 3
"""The least calls of a round, and of one whose single calls are heavy: one in the short batch, two in the long one."""
HEAVY_SECONDS = 0.040
"""A call that alone is twice as long as a batch must be: with eight calls a round, a heat of it took 12 s."""
ARENA_BYTES, DEVICE_SHARE = 192 << 20, 64
"""Per slab, and the part of a GPU's memory it may take there, where 192 MiB are six calls of 20 us: one of inputs and
one of outputs per arm exist while a heat is timed."""
ROUNDS_PER_HEAT = 2
KEPT_BYTES = 2 << 30
"""Buffers kept from one heat to the next; making them anew costs as much as timing on them."""
MOST_TRIP_SECONDS = 5e-4
"""No round trip is believed to cost more: a runner that answers late cannot buy time with it."""
SUSPECT, SUSPECT_HEATS = 0.25, 3
"""A slope below this share of the long batch's own mean, in so many heats in a row, was bought by stalling in the short
one; a single heat may be the noise of a busy machine and is measured again."""


class TimingFailed(Exception):
    """A candidate failed while it was being timed."""

    def __init__(self, arm: int, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.arm = arm
        """Its place among the arms: the incumbent is 0."""
        self.failure = failure


class Slope(NamedTuple):
    """Two batches, in seconds and calls."""

    short_s: float
    short: int
    long_s: float
    long: int

    def call_us(self, trip_s: float) -> float:
        """Return the time of a call: the slope, but never less than both batches together without their round trips.

        The slope alone could be bought by stalling in the short batch.
        """
        slope = (self.long_s - self.short_s) / (self.long - self.short)
        together = (self.short_s + self.long_s - 2 * trip_s) / (self.short + self.long)
        return max(slope, together) * 1e6

    @property
    def whole_us(self) -> float:
        """Return the time of a call from the long batch alone: an upper bound."""
        return self.long_s / self.long * 1e6


def undisturbed(times: Sequence[float]) -> float:
    """Return the mean of the lower half: what else a machine does only ever adds to the time of a call.

    A gain of 10 % on two cores of a busy host showed in every heat; by medians, in nine of ten (docs/measured.md).
    """
    return mean(sorted(times)[: max(1, len(times) // 2)])


@dataclass(frozen=True)
class Arm:
    """One candidate of a heat, on one case."""

    bench: Bench
    artefact: Path | None
    """None if the trusted launcher runs it."""


def arm_of(bench: Bench, case: Case) -> Arm:
    """Return an accepted candidate's arm on a case."""
    if bench.is_planned:
        return Arm(bench, None)
    _, artefact = bench.builds.get(bench.candidate, bench.candidate.values_for(case.hash))
    assert artefact is not None, "only accepted candidates are timed"
    return Arm(bench, artefact)


class Heat:
    """Fresh runners of all arms on shared inputs for one case."""

    def __init__(self, case: Case, arms: Sequence[Arm], calls: int, rng: random.Random) -> None:
        self.case, self.arms, self.calls, self.rng = case, tuple(arms), calls, rng
        self.nurseries: Sequence[Service] = ()
        # An author's own host code could leave the work for the moment its outputs are copied. That moment counts then,
        # for every arm that returns outputs; baselines among themselves are spared it.
        self.counts_copies = any(
            arm.bench.candidate.origin is Origin.AUTHOR and returns_outputs(arm.bench.candidate.backend)
            for arm in arms
        )
        self.trips: list[float] = []
        self.arenas = [arm.bench.arena([case], [0] * calls) for arm in arms]
        # All arms read the very same input pages; only the outputs are their own.
        for arena in self.arenas[1:]:
            arena.inputs.close()
            arena.inputs = self.arenas[0].inputs
        first = self.arenas[0]
        self.filled = [
            {spec.name: once(first.view(number, spec), spec) for spec in case.inputs}
            for number in range(calls)
        ]
        """The inputs of every call by name."""
        self.mixtures = Mixtures(case, arms[0].bench.where, rng)
        self.refill()

    @property
    def spared(self) -> int:
        """Return how many calls of a pass are not made; answering heavy ones ahead would save nothing."""
        return 0 if self.calls == FEWEST_CALLS else spared_of(self.calls)

    @property
    def nbytes(self) -> int:
        """Return how much memory its buffers take."""
        return self.arenas[0].inputs.nbytes + sum(arena.outputs.nbytes for arena in self.arenas)

    def close(self) -> None:
        """Give the memory back."""
        self.arenas[0].inputs.close()
        for arena in self.arenas:
            arena.outputs.close()

    def refill(self) -> None:
        """Give every call inputs nobody has seen."""
        self.mixtures.fill_all(self.filled)

    def measure(self, nurseries: Sequence[Service], *, is_looked_at: bool = True) -> list[float]:
        """Return the median time of a call of every arm, in microseconds; runners are born in their arms' nurseries."""
        self.nurseries, self.trips = nurseries, []
        self.mixtures.draw_hard()
        times: list[list[Slope]] = [[] for _ in self.arms]
        order = list(range(len(self.arms)))
        self.rng.shuffle(order)
        with ExitStack() as stack:
            # All are started before the first is waited for: loading, and a GPU's context, take longer than timing.
            runners = {
                place: stack.enter_context(self._guarded(place, self._start(place))) for place in order
            }
            for place in order:
                self._guarded(place, partial(self._warm_up, runners[place]))
            for _ in range(1 if self.calls == FEWEST_CALLS else ROUNDS_PER_HEAT):
                self.rng.shuffle(order)
                looked_at = self.rng.randrange(2)
                for number, half in enumerate((order, order[::-1])):
                    now = dealt(self.calls, self.spared, self.rng)
                    # Before there is anything new to read: neither of this is charged to anybody.
                    for place in half:
                        self._guarded(place, partial(self._close, runners[place], now.spared))
                        self._guarded(place, partial(self._trip, runners[place]))
                    self.refill()
                    now = now._replace(hard=self.mixtures.harden(self.filled, now.made))
                    for place in half:
                        self.arenas[place].poison_outputs()
                        slope = partial(self._slope, place, runners[place], now.made)
                        times[place].append(self._guarded(place, slope))
                        if failure := wrongly_written(self.arenas[place], now, self.case):
                            raise TimingFailed(place, failure)
                    if is_looked_at and number == looked_at:
                        self._check_answers(now)
        return [self._agreed(place, slopes) for place, slopes in enumerate(times)]

    def _agreed(self, place: int, slopes: list[Slope]) -> float:
        """Return what a call takes, unless the batch as a whole tells of far more time than the slope does."""
        trip = min(MOST_TRIP_SECONDS, *self.trips)
        call = undisturbed([slope.call_us(trip) for slope in slopes])
        whole = undisturbed([slope.whole_us for slope in slopes])
        if call < SUSPECT * whole:
            reason = f"the slope says {call:.1f} us a call, the batch as a whole {whole:.1f} us"
            raise TimingFailed(place, Failure(Status.TIMING_SUSPECT, reason, self.case))
        return call

    def _start(self, place: int) -> Callable[[], Runner]:
        return partial(born, self.arms[place], self.arenas[place], self.nurseries[place])

    def _guarded(self, place: int, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except Lost as lost:
            raise TimingFailed(place, Failure(lost.status, lost.reason, self.case)) from lost

    def _warm_up(self, runner: Runner) -> None:
        runner.ready(LOAD_SECONDS)
        runner.run(0, self.calls, CALL_SECONDS)
        runner.collect(CALL_SECONDS)

    def _close(self, runner: Runner, spared: tuple[int, ...]) -> None:
        """Have the inputs of calls that are not made refused: whoever answers calls ahead looks at them too."""
        if spared:
            runner.carry_out(Close(calls=spared), CALL_SECONDS)

    def _trip(self, runner: Runner) -> None:
        """Time a batch of no calls: the smallest of all arms' is what a round trip costs."""
        self.trips.append(runner.batch((), CALL_SECONDS))

    def _slope(self, place: int, runner: Runner, made: tuple[int, ...]) -> Slope:
        """Time a short and a long batch over different calls, in random order, with a random split."""
        short = self.rng.randrange(max(1, len(made) // 5), len(made) // 3 + 1)
        long = len(made) - short
        batches = [made[:short], made[short:]]
        self.rng.shuffle(batches)
        seconds = {}
        for calls in batches:
            looked, left = self.arenas[place].sampled(calls, SAMPLES)
            if left < looked:
                raise Lost(Status.STATEFUL, "outputs were written before their calls were asked for")
            seconds[len(calls)] = runner.batch(calls, CALL_SECONDS)
            copying = runner.collect(CALL_SECONDS)
            seconds[len(calls)] += copying if self.counts_copies else 0.0
        return Slope(seconds[short], short, seconds[long], long)

    def _check_answers(self, now: Pass) -> None:
        """Check that calls of what was just timed are right, whoever made them."""
        arms = [
            Answered(place, arena, arm.bench)
            for place, (arm, arena) in enumerate(zip(self.arms, self.arenas, strict=True))
        ]
        # Of three heavy calls the one that differs will do.
        few = self.calls == FEWEST_CALLS
        if found := wrongly_answered(arms, now, self.case, self.rng, few=few):
            raise TimingFailed(*found)


def born(arm: Arm, arena: Arena, nursery: Service) -> Runner:
    """Return a fresh runner of an arm: a process of its own, or a launcher that is given its plan."""
    bench = arm.bench
    if arm.artefact is None:
        job = device_job(bench.candidate, arena, bench.problem.device, bench.builds, bench.home)
        return launched(nursery, job, arena, bench.home, ahead=False)
    return ForkedRunner(nursery, arm.artefact, bench.candidate.backend, arena, bench.home)


def calls_for(case: Case, arm: Arm) -> int:
    """Return how many calls make a batch long enough, within the memory we allow."""
    largest = max(1, max(_slab_bytes(case.inputs), _slab_bytes(case.outputs)))
    room = ARENA_BYTES if arm.bench.is_cpu else arm.bench.problem.device.memory_bytes // DEVICE_SHARE
    most = max(USUAL_CALLS, min(MAX_CALLS, room // largest))
    op, bench = plugins.load("ops", case.op), arm.bench
    with bench.arena([case], [0] * USUAL_CALLS) as arena:
        for number in range(USUAL_CALLS):
            arena.write_inputs(number, op.make_inputs(case, Distribution.SIGNED, bench.rng.getrandbits(62)))
        try:
            with born(arm, arena, bench.nursery) as runner:
                runner.ready(LOAD_SECONDS)
                runner.run(0, 1, CALL_SECONDS)
                if runner.run(1, 1, CALL_SECONDS) >= HEAVY_SECONDS:
                    return FEWEST_CALLS
                runner.run(0, USUAL_CALLS, CALL_SECONDS)
                seconds = min(runner.run(0, USUAL_CALLS, CALL_SECONDS) for _ in range(3)) / USUAL_CALLS
        except Lost as lost:
            raise TimingFailed(0, Failure(lost.status, lost.reason, case)) from lost
    wanted = BATCH_SECONDS / max(seconds, 1e-7) * SPARED / (SPARED - 1)
    return max(USUAL_CALLS, min(most, math.ceil(wanted)))


def _slab_bytes(specs: tuple[TensorSpec, ...]) -> int:
    return sum(-(-spec.storage_elements * spec.dtype.itemsize // PAGE) * PAGE for spec in specs)


class Heats:
    """All heats of one race: each of fresh processes, born from one of several parents.

    What is asked of the clock alone, and keeps nothing, need not have its answers looked at: of a heavy call that takes
    twice as long as timing it.
    """

    def __init__(self, starts: Sequence[Start] = (), *, is_looked_at: bool = True) -> None:
        self.starts, self.is_looked_at = tuple(starts), is_looked_at
        self.kept: dict[str, Heat] = {}

    def __enter__(self) -> "Heats":
        return self

    def __exit__(self, *_: object) -> None:
        for heat in self.kept.values():
            heat.close()
        self.kept.clear()

    def size(self, bench: Bench, case: Case) -> int:
        """Return how many calls a batch of a case holds."""
        return calls_for(case, arm_of(bench, case))

    def measure(self, case: Case, benches: Sequence[Bench], size: int, start: int = 0) -> list[float]:
        """Return the times of one heat, in microseconds; a heat whose clocks disagree is measured again."""
        nurseries = [self.starts[start](bench) if self.starts else bench.nursery for bench in benches]
        heat = self._heat(case, tuple(arm_of(bench, case) for bench in benches), size, benches[0].rng)
        for attempt in range(SUSPECT_HEATS):
            try:
                return heat.measure(nurseries, is_looked_at=self.is_looked_at)
            except TimingFailed as failed:
                if failed.failure.status is not Status.TIMING_SUSPECT or attempt + 1 == SUSPECT_HEATS:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _heat(self, case: Case, arms: tuple[Arm, ...], size: int, rng: random.Random) -> Heat:
        """Return the buffers of a case, those of the last heat if the arms are the same: its runners are dead."""
        if heat := self.kept.pop(case.hash, None):
            if heat.arms == arms:
                self.kept[case.hash] = heat
                return heat
            heat.close()
        if sum(heat.nbytes for heat in self.kept.values()) > KEPT_BYTES:
            self.__exit__()
        self.kept[case.hash] = Heat(case, arms, size, rng)
        return self.kept[case.hash]

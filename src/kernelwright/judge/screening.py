"""The cheap look: rough times of one candidate's source with several values. Nothing can be kept on one.

1. What the guards, the grid of `PARAMS` or the problem's cases rule out is refused. All builds start at once.
2. Smoke: each set of values answers one call of the trial's case, judged like any other output. Plans share a launcher,
   which runs no code of an author's. Native and host code get a process each, and one that is not asked stands still:
   values of one author's file need no wall for trust, but one of them must not slow down the others.
3. Then, alone on the device, all that passed are timed in one heat as in a comparison, beside an anchor: the values
   the candidate has. What is told is the ratio to the anchor times what the anchor took in its first heat, so that
   looks taken at different hours can be ranked together.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kernelwright.core.brief import Trial
from kernelwright.core.candidate import Candidate, ParamChoice, ParamValue
from kernelwright.core.case import Case, Distribution
from kernelwright.core.errors import ServiceDied
from kernelwright.core.frozen import canonical_json
from kernelwright.core.messages.judge import Screen
from kernelwright.core.messages.runner import DeviceJob
from kernelwright.core.plan import LaunchPlan
from kernelwright.core.plan_language import PlanFault, parse_params
from kernelwright.core.verdict import Screening, Status
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import Lost, Runner
from kernelwright.judge.execution import LOAD_SECONDS, compile_ahead, compile_cases, units_of
from kernelwright.judge.heat import TimingFailed
from kernelwright.judge.look_heat import Arm, Found, LookHeat, Values
from kernelwright.judge.oracle import Answer
from kernelwright.judge.runners import LaunchedRunner, launched, returns_outputs
from kernelwright.judge.stages import CALL_SECONDS, Bench, Failure
from kernelwright.judge.stages.checks import answers_to, check_answers, drawn, runner_on
from kernelwright.judge.stages.intake import build, guards
from kernelwright.judge.timing import refuse_interpreted

ANCHORS = 2
"""Arms of a heat that have the anchor's values; the faster one counts. An anchor held up by something else would make
every value of its heat look good, and a process can be 2 to 13 % slower than its twin by luck."""
MOST_LAUNCHERS = 4
"""Kept ready for a look: a context takes half a gigabyte."""
LEAST_PATIENCE_S, PATIENCE = 2.0, 50
"""A call that takes this many times the anchor's hangs, for all a look cares."""
SMOKE_CALLS, QUICK_SECONDS = 3, 0.05
FAR, FAR_SECONDS = 8.0, 2e-4
"""Values whose smoke took so many times the anchor's lose any race: their heat would cost more than all the others'."""


@dataclass(frozen=True)
class Grounds:
    """What looks need of the judge."""

    bench_of: Callable[[Candidate], Bench]
    replace_nurseries: Callable[[], None]
    anchors: dict[str, float]
    """What each anchor took in its first heat, in microseconds; outlives the look."""


@dataclass(frozen=True)
class Lot:
    """The trials of one case."""

    case: Case
    own: Values
    """The anchor's."""
    trials: dict[int, Values]
    """By their place in the request."""

    @cached_property
    def distinct(self) -> dict[str, Values]:
        """Return every set of values once, the anchor's first."""
        return {key_of(values): values for values in (self.own, *self.trials.values())}


@dataclass(frozen=True)
class Stand:
    """One call of a case, its buffers and its right answers."""

    case: Case
    arena: Arena
    answers: list[Answer]
    digest: bytes
    """Of the inputs as they were given."""


def key_of(values: Values) -> str:
    """Return the one spelling of a set of values."""
    return canonical_json(values)


def screen(request: Screen, grounds: Grounds) -> tuple[Screening, ...]:
    """Return one look per trial, in order."""
    started, looks = time.perf_counter(), Looks(request, grounds)
    found = looks.taken()
    seconds = (time.perf_counter() - started) / max(1, len(found))
    for place, one in sorted(found.items()):
        if isinstance(one, Failure):
            text = f"look at {key_of(request.trials[place].values)}: {one.status.value}: {one.reason[:200]}"
            looks.bench.progress(text)
    return tuple(
        Screening(
            candidate_hash=request.candidate.hash,
            problem_hash=request.problem.hash,
            values=trial.values,
            case_hash=trial.case_hash,
            status=one.status if isinstance(one := found[place], Failure) else Status.ACCEPTED,
            latency_us=None if isinstance(one, Failure) else one,
            seconds=seconds,
        )
        for place, trial in enumerate(request.trials)
    )


class Looks:
    """One request in the making."""

    def __init__(self, request: Screen, grounds: Grounds) -> None:
        self.request, self.grounds = request, grounds
        self.problem, self.candidate = request.problem, request.candidate
        self.bench = grounds.bench_of(self.candidate)
        self.cases = {case.hash: case for case in self.problem.cases}

    def taken(self) -> dict[int, Found]:
        """Return, per place of a trial, its time in microseconds or why there is none."""
        found: dict[int, Found] = {}
        lots: dict[str, Lot] = {}
        barred = self._barred()
        for place, trial in enumerate(self.request.trials):
            if failure := barred or self._refusal(trial):
                found[place] = failure
                continue
            own = self.candidate.values_for(trial.case_hash)
            lot = lots.setdefault(trial.case_hash, Lot(self.cases[trial.case_hash], own, {}))
            lot.trials[place] = trial.values
        for lot in lots.values():
            self._begin(lot)
        # One each for smoke and heat: they make their contexts while the kernels are compiled.
        self._keep_launchers(min(MOST_LAUNCHERS, 2 * len(lots)))
        smoked = {key: self._smoked(lot) for key, lot in lots.items()}
        for key, lot in lots.items():
            for place, values in lot.trials.items():
                found[place] = smoked[key][key_of(values)]
        if any(isinstance(found[place], float) for lot in lots.values() for place in lot.trials):
            with self.bench.lock:
                for key, lot in lots.items():
                    found |= self._timed(lot, smoked[key])
        self._keep_launchers(2 if lots else 0)
        return found

    def _barred(self) -> Failure | None:
        """Return why no look at this source can be taken at all."""
        try:
            refuse_interpreted(self.bench)
        except TimingFailed as failed:
            return failed.failure
        return guards(self.bench)[1]

    def _refusal(self, trial: Trial) -> Failure | None:
        """Return what is wrong with a trial before anything is built."""
        if trial.case_hash not in self.cases:
            return Failure(Status.REFUSED, f"case {trial.case_hash[:12]} is none of the problem's")
        own = self.candidate.values_for(trial.case_hash)
        if key_of(trial.values) == key_of(own) or _is_offered(trial.values, self._grid):
            return None
        return Failure(Status.REFUSED, f"not offered by PARAMS {self._grid}")

    @cached_property
    def _grid(self) -> dict[str, list[ParamValue]]:
        try:
            return parse_params(self.candidate.source)
        except PlanFault:
            return {}

    def _bench(self, values: Values) -> Bench:
        """Return a bench for the source with these values everywhere, over a nursery that lives."""
        choice = ParamChoice(values=values)
        return self.grounds.bench_of(self.candidate.model_copy(update={"choices": (choice,)}))

    def _begin(self, lot: Lot) -> None:
        """Start all builds of a lot on all cores."""
        for values in lot.distinct.values():
            bench = self._bench(values)
            if bench.is_planned:
                compile_ahead(bench.candidate, [lot.case], self.problem.device, bench.builds)
            else:
                bench.builds.begin(bench.candidate)

    def _keep_launchers(self, count: int) -> None:
        """Have launchers make their contexts before they are needed."""
        nursery, index = self.bench.nursery, self.problem.device.index
        while self.bench.is_planned and len(nursery.spares) < count:
            nursery.spares.append(LaunchedRunner(nursery, index, self.bench.home))

    def _smoked(self, lot: Lot) -> dict[str, Found]:
        """Return, per set of values, the seconds of a call that was answered right, or the failure."""
        bench = self.bench
        with bench.arena([lot.case], [0]) as arena:
            arena.write_inputs(0, bench.op.make_inputs(lot.case, Distribution.SIGNED, bench.seed))
            with bench.lock.shared():
                stand = Stand(lot.case, arena, answers_to(bench, arena, 0), arena.input_digest())
            if bench.is_planned:
                return self._smoked_in_launchers(lot, stand)
            found: dict[str, Found] = {}
            for key, values in lot.distinct.items():
                found[key] = self._smoked_alone(self._bench(values), stand, self._patience(found))
            return found

    def _patience(self, found: dict[str, Found]) -> float:
        """Return how long a call may take; host code that compiles when it is called gets all the time there is."""
        first = next(iter(found.values()), None)
        if not isinstance(first, float) or returns_outputs(self.candidate.backend):
            return CALL_SECONDS
        return min(CALL_SECONDS, max(LEAST_PATIENCE_S, PATIENCE * first))

    def _smoked_alone(self, bench: Bench, stand: Stand, patience_s: float) -> Found:
        """Build one set of values and run a call in a process of its own."""
        if failure := build(bench)[1]:
            return failure
        stand.arena.poison_outputs()
        try:
            with bench.lock.shared():
                with runner_on(bench, stand.arena) as runner:
                    seconds = _call_seconds(runner, 0, patience_s)
                return self._judged(bench, stand, 0) or seconds
        except Lost as lost:
            return Failure(lost.status, lost.reason, stand.case)
        except ServiceDied as died:
            return self._took_down(died)

    def _judged(self, bench: Bench, stand: Stand, number: int) -> Failure | None:
        """Judge what a call left; a narrow miss is looked at again, as in the smoke stage."""
        again = drawn(bench, stand.case, Distribution.SIGNED)
        if not bench.is_cpu and stand.arena.input_digest() != stand.digest:  # on a CPU they are sealed
            return Failure(Status.INPUT_CHANGED, "an input was modified", stand.case)
        return check_answers(bench, stand.arena, number, stand.answers, again=again)

    def _took_down(self, died: ServiceDied) -> Failure:
        """Return the failure of a candidate that took its parent with it; the next one finds a fresh parent."""
        if died.service != "nursery":
            raise died
        self.grounds.replace_nurseries()
        self.bench = self.grounds.bench_of(self.candidate)
        return Failure(Status.CRASHED, f"the candidate took its parent process down: {died}")

    def _smoked_in_launchers(self, lot: Lot, stand: Stand) -> dict[str, Found]:
        """Run a call of every plan in one launcher; after one that fails, the others go on in a fresh one."""
        found: dict[str, Found] = {}
        plans: list[LaunchPlan | None] = []
        folder = tempfile.mkdtemp(dir=self.bench.home, prefix="units-")
        for number, (key, values) in enumerate(lot.distinct.items()):
            if number:
                stand.arena.call_at(0, lot.case)  # all on the same buffers, one after the other
            plan = self._compiled(values, lot.case, Path(folder))
            plans.append(None if isinstance(plan, Failure) else plan)
            if isinstance(plan, Failure):
                found[key] = plan
        while left := [key for key in lot.distinct if key not in found]:
            found |= self._smoked_until_lost(lot, stand, left, self._job(stand.arena, plans, folder))
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def _compiled(self, values: Values, case: Case, folder: Path) -> LaunchPlan | Failure:
        bench, device = self._bench(values), self.problem.device
        try:
            (plan,) = compile_cases(bench.candidate, [case], device, bench.builds)
        except Lost as lost:
            return Failure(lost.status, lost.reason, case)
        bench.builds.collect_units(bench.candidate, units_of(plan, case), device.arch, folder)
        return plan

    def _job(self, arena: Arena, plans: Sequence[LaunchPlan | None], folder: str) -> DeviceJob:
        return DeviceJob(
            index=self.problem.device.index,
            folder=folder,
            cases=arena.cases,
            calls=arena.calls,
            plans=tuple(plans),
            input_bytes=(arena.inputs.nbytes,),
            output_bytes=arena.outputs.nbytes,
        )

    def _smoked_until_lost(
        self, lot: Lot, stand: Stand, left: Sequence[str], job: DeviceJob
    ) -> dict[str, Found]:
        """Return what came of the first sets of values left, up to one that cost the launcher."""
        found: dict[str, Found] = {}
        numbers = {key: number for number, key in enumerate(lot.distinct)}
        key = left[0]
        try:
            with (
                self.bench.lock.shared(),
                launched(self.bench.nursery, job, stand.arena, self.bench.home, ahead=False) as runner,
            ):
                runner.ready(LOAD_SECONDS)
                for key in left:
                    stand.arena.poison_outputs()
                    seconds = _call_seconds(runner, numbers[key], self._patience(found))
                    found[key] = self._judged(self._bench(lot.distinct[key]), stand, numbers[key]) or seconds
        except Lost as lost:
            found[key] = Failure(lost.status, lost.reason, lot.case)
        except ServiceDied as died:
            found[key] = self._took_down(died)
        return found

    def _timed(self, lot: Lot, smoked: dict[str, Found]) -> dict[int, Found]:
        """Return the times of the trials whose values passed the smoke, as ratios to the anchor's."""
        seconds = {key: one for key, one in smoked.items() if isinstance(one, float)}
        if not seconds:
            return {}
        anchor_key = next(iter(seconds))  # the candidate's own values, or the first that run
        anchor = Arm(lot.distinct[anchor_key], seconds[anchor_key])
        passed = {place: key for place, values in lot.trials.items() if (key := key_of(values)) in seconds}
        limit_s = max(FAR * anchor.seconds, FAR_SECONDS)
        found: dict[int, Found] = {
            place: seconds[key] * 1e6 for place, key in passed.items() if seconds[key] > limit_s
        }
        racing = [place for place in passed if place not in found]
        memory = canonical_json([self.candidate.hash, lot.case.hash, anchor_key])
        heat = LookHeat(lot.case, self.bench, self._bench, self._took_down)
        room = heat.most_arms(anchor) - ANCHORS
        for start in range(0, len(racing), room):
            group = racing[start : start + room]
            arms = [Arm(lot.trials[place], seconds[passed[place]]) for place in group]
            times = heat.times([*[anchor] * ANCHORS, *arms])
            against = min((one for one in times[:ANCHORS] if isinstance(one, float)), default=None)
            for place, one in zip(group, times[ANCHORS:], strict=True):
                found[place] = one
                if isinstance(one, float) and against is not None:
                    found[place] = one / against * self.grounds.anchors.setdefault(memory, against)
        return found


def _call_seconds(runner: Runner, number: int, patience_s: float) -> float:
    """Run a call and return what it takes without its round trip, roughly."""
    first = runner.run(number, 1, patience_s)
    runner.collect(patience_s)
    if first > QUICK_SECONDS:
        return first
    trip = min(runner.run(number, 0, patience_s) for _ in range(SMOKE_CALLS))
    return max(1e-6, min(runner.run(number, 1, patience_s) for _ in range(SMOKE_CALLS)) - trip)


def _is_offered(values: Values, grid: dict[str, list[ParamValue]]) -> bool:
    """Tell whether values are a point of the grid: `1`, `1.0` and `True` are three."""
    return values.keys() == grid.keys() and all(
        any(type(one) is type(value) and one == value for one in grid[name]) for name, value in values.items()
    )

"""From a candidate to a verdict: stages in order of cost, stop at the first failure, times only behind all of them."""

import os
import platform
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from kernelwright.core.candidate import Candidate
from kernelwright.core.counters import CounterProfile, NoCounters
from kernelwright.core.device import Device
from kernelwright.core.errors import DeviceLost, ServiceDied, UnfairClock
from kernelwright.core.messages.judge import (
    Compare,
    ComparisonAnswer,
    CountCase,
    CounterAnswer,
    Describe,
    Described,
    Disqualified,
    JudgeSettings,
    Prepare,
    RecordCase,
    RecordingAnswer,
    Screen,
    ScreeningAnswer,
)
from kernelwright.core.messages.reference import DESCRIBED
from kernelwright.core.problem import Problem
from kernelwright.core.stats import KeepRule
from kernelwright.core.verdict import (
    REQUIRED_STAGES,
    Evaluation,
    Profile,
    Stage,
    StageResult,
    Status,
    Timing,
)
from kernelwright.hardware.lock import DeviceLock
from kernelwright.judge import clock
from kernelwright.judge.ahead import compile_early, compile_late
from kernelwright.judge.builds import Builds
from kernelwright.judge.children import Service
from kernelwright.judge.counted import count
from kernelwright.judge.execution import compile_ahead
from kernelwright.judge.heat import TimingFailed
from kernelwright.judge.kept import Kept
from kernelwright.judge.native import looked_at
from kernelwright.judge.nurseries import Nurseries
from kernelwright.judge.presence import require_device
from kernelwright.judge.recorded import built
from kernelwright.judge.runners import Keeper
from kernelwright.judge.screening import Grounds, screen
from kernelwright.judge.stages import Bench, Failure, run_stage
from kernelwright.judge.stages.intake import guards, is_audited
from kernelwright.judge.timing import certify, refuse_interpreted
from kernelwright.store.blobs import Blobs

SHIP_SHAPES = 3
"""Hidden shapes of `ship`, in those of `keep`."""
CONFIRMING_STARTS = 3
"""Separately started parents behind a number that is published."""
AT_THE_DESK = frozenset({Stage.GUARDS, Stage.BUILD, Stage.REBUILD})
"""Stages that read and compile: all others put the device to work, and wait where another process times on it."""
LIFELESS = frozenset({Status.CRASHED, Status.TIMED_OUT})
"""What a candidate seems to have done when its GPU is gone."""


class Judge:
    """The judge of one run: its children, its cache, its secrets."""

    def __init__(self, settings: JudgeSettings, progress: Callable[[str], None]) -> None:
        self.settings = settings
        self.progress = progress
        # Checking small outputs on two threads cost eight times the processor time of one: they wait for each other.
        torch.set_num_threads(1)
        self.scratch = tempfile.TemporaryDirectory(prefix="kernelwright-judge-", ignore_cleanup_errors=True)
        self.home = Path(self.scratch.name)
        self.builds = Builds(
            Path(settings.cache_folder), self.home, os.cpu_count() or 1, guards_off=settings.guards_off
        )
        self.blobs = Blobs(Path(settings.blob_folder))
        self.kept = Kept(self.builds, self.blobs, self.home)
        self.reference = Service("reference", "kernelwright.judge.reference", self.home, settings.threads)
        self.nurseries = Nurseries(self.home, settings.threads)
        self.fair: set[tuple[str, bool]] = set()
        """Devices and clocks, launchers' events or not, by which no candidate beats itself."""
        self.locks: dict[str, DeviceLock] = {}
        """By device: each asks the driver once which piece of silicon it is about, in a process of its own."""
        self.testability: dict[str, str | None] = {}
        self.anchors: dict[str, float] = {}
        """What looks were measured against, in microseconds."""

    def close(self) -> None:
        """Kill every child and leave nothing on disk but cache and blobs."""
        self.nurseries.close()
        self.builds.close()
        self.reference.close()
        self.scratch.cleanup()

    def bench(self, problem: Problem, candidate: Candidate, profile: Profile = Profile.KEEP) -> Bench:
        """Return what the stages work on: this judge's children and fresh randomness."""
        more = SHIP_SHAPES if profile is Profile.SHIP else 1
        return Bench(
            problem=problem,
            candidate=candidate,
            builds=self.builds,
            nursery=self.nurseries.of(problem, candidate),
            reference=self.reference,
            home=self.home,
            lock=self._lock_of(problem.device),
            rng=random.SystemRandom(),
            hidden_shapes=more * self.settings.hidden_shapes,
            progress=self.progress,
            guards_off=self.settings.guards_off,
            audit_off=self.settings.audit_off,
            testability=self.testability,
        )

    def _lock_of(self, device: Device) -> DeviceLock:
        if device.hash not in self.locks:
            self.locks[device.hash] = DeviceLock(
                device, wait_s=self.settings.device_wait_s, show=self.progress
            )
        return self.locks[device.hash]

    def describe(self, request: Describe) -> Described:
        """Return what a user's module is: the reference loads the file, this process never does."""
        return self.reference.ask(request, [], DESCRIBED)

    def prepare(self, request: Prepare) -> None:
        """Start building a candidate that will be asked about next, on other cores; what fails is told when it is.

        What the cores have no room for is built when its turn comes, or begun when it is told of again.
        """
        problem, candidate, room = request.problem, request.candidate, self.builds.room()
        if not room:
            return
        bench = self.bench(problem, candidate)
        if guards(bench)[1]:
            return
        if bench.is_planned:
            wanted = [*problem.cases, *bench.small_cases()]
            compile_ahead(candidate, wanted, problem.device, self.builds, room)
        else:
            self.builds.begin(candidate, room)

    def screen(self, request: Screen) -> ScreeningAnswer:
        """Return a cheap look per trial, in order."""
        bench = self.bench(request.problem, request.candidate)
        grounds = Grounds(
            partial(self.bench, request.problem), partial(self._replace_nurseries, bench), self.anchors
        )
        with _drawing_on(bench):
            found = screen(request, grounds)
        self._acquit_if_lost(bench, [one.status for one in found])
        return ScreeningAnswer(screenings=found)

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        """Return the verdict on one candidate."""
        keeper = Keeper(self.progress)
        bench = replace(self.bench(problem, candidate, profile), keeper=keeper)
        with _drawing_on(bench), closing(keeper):
            return self._evaluated(bench, keeper, profile)

    def _evaluated(self, bench: Bench, keeper: Keeper, profile: Profile) -> Evaluation:
        started, problem, candidate = time.perf_counter(), bench.problem, bench.candidate
        results: list[StageResult] = []
        failure: Failure | None = None
        timing: Timing | None = None
        artefacts: dict[str, str] = {}
        waiting = deque(REQUIRED_STAGES[profile])
        while waiting:
            stage = waiting.popleft()
            self.progress(f"{candidate.backend}: {stage.value}")
            if stage is Stage.BUILD:
                compile_early(bench)
            if stage is Stage.TIMING:
                keeper.close()  # nothing but what is timed is on the device
                result, failure, timing = self._certified(bench)
                if timing and timing.is_beyond_floor:
                    # Faster than the device was measured to be: nothing that could find out why is left out.
                    done = {stage, *(one.stage for one in results)}
                    waiting.extend(one for one in REQUIRED_STAGES[Profile.SHIP] if one not in done)
            else:
                result, failure = self._run(stage, bench)
            results.append(result)
            if failure:
                self.builds.drop(candidate)
                self._acquit_if_lost(bench, [failure.status])
                break
            if stage is Stage.SMOKE:
                compile_late(bench, waiting)
            if stage is Stage.BUILD:
                # Before anything of the candidate runs: what is stored now is what is spliced later.
                artefacts = self.kept.keep(candidate, problem)
        return Evaluation(
            candidate_hash=candidate.hash,
            problem_hash=problem.hash,
            device_hash=problem.device.hash,
            profile=profile,
            status=failure.status if failure else Status.ACCEPTED,
            stages=tuple(results),
            timing=None if failure else timing,
            artefact_hashes={} if failure else artefacts,
            resources={} if failure else self.kept.resources(candidate, problem),
            log_hash=self.blobs.put(failure.reason.encode()) if failure else None,
            environment=self._environment(bench),
            seconds=time.perf_counter() - started,
        )

    def _run(self, stage: Stage, bench: Bench) -> tuple[StageResult, Failure | None]:
        """Run a stage; a candidate that takes the nursery down with it has crashed, and a new nursery is started."""
        try:
            with nullcontext() if stage in AT_THE_DESK else bench.lock.shared():
                return run_stage(stage, bench)
        except ServiceDied as died:
            failure = self._bereaved(died, bench)
            return StageResult(stage=stage, passed=False, seconds=0, reason=failure.reason), failure

    def _certified(self, bench: Bench) -> tuple[StageResult, Failure | None, Timing | None]:
        """Time a candidate; one that takes the nursery down with it has crashed here too."""
        try:
            return certify(bench, self.settings.ceilings)
        except ServiceDied as died:
            failure = self._bereaved(died, bench)
            result = StageResult(stage=Stage.TIMING, passed=False, seconds=0, reason=failure.reason)
            return result, failure, None

    def _bereaved(self, died: ServiceDied, bench: Bench, others: Sequence[Nurseries] = ()) -> Failure:
        """Give up all nurseries after the death of one and return what it means; another death is our own failure."""
        if died.service != "nursery":
            raise died
        self._replace_nurseries(bench, others)
        return Failure(Status.CRASHED, f"the candidate took its parent process down: {died}")

    def _replace_nurseries(self, bench: Bench, others: Sequence[Nurseries] = ()) -> None:
        """Give up all nurseries; if a fresh one cannot work either, the device is lost and nobody to blame."""
        for nurseries in (self.nurseries, *others):
            nurseries.close()
        self._require_device(bench)

    def _require_device(self, bench: Bench) -> None:
        nursery = self.nurseries.of(bench.problem, bench.candidate)
        try:
            require_device(bench.problem.device, nursery, self.home, is_launched=bench.is_launched)
        except DeviceLost:
            self.nurseries.close()  # whoever asks again finds fresh ones
            raise

    def _acquit_if_lost(self, bench: Bench, statuses: Sequence[Status]) -> None:
        """Raise `DeviceLost` where candidates seem to have died and the GPU did: launchers without one end, too."""
        if not bench.is_cpu and not LIFELESS.isdisjoint(statuses):
            self._require_device(bench)

    def _environment(self, bench: Bench) -> dict[str, str]:
        audit = {"audit": looked_at(guarded=not bench.guards_off)} if is_audited(bench) else {}
        return {
            **audit,
            "torch": version("torch"),
            "python": platform.python_version(),
            "kernelwright": version("kernelwright"),
            "threads": str(self.settings.threads),
            "hidden shapes": str(self.settings.hidden_shapes),
            "sandbox": bench.nursery.sandbox or "nothing ran",
            "builder": self.builds.foundry.sandbox,
        }

    def compare(self, request: Compare) -> ComparisonAnswer:
        """Return what fresh heats of the incumbent and its challengers prove."""
        problem, rule = (
            request.problem,
            KeepRule(alpha=self.settings.alpha, max_pairs=self.settings.max_pairs),
        )
        incumbent = self.bench(problem, request.incumbent)
        earlier = request.earlier or (None,) * len(request.challengers)
        lanes = [
            clock.Lane(self.bench(problem, challenger), rule, before)
            for challenger, before in zip(request.challengers, earlier, strict=True)
        ]
        count, part_s = CONFIRMING_STARTS if request.confirm else 0, 0.0
        extra = [Nurseries(self.home, self.settings.threads) for _ in range(count)]
        if incumbent.is_launched:
            for nurseries in extra:
                # All at once: each takes seconds to import, and a GPU's clock does not mind a busy host.
                nurseries.of(problem, request.incumbent)
        try:
            arms = (incumbent, *(lane.bench for lane in lanes))
            for bench in arms:
                refuse_interpreted(bench)
            held_s = incumbent.lock.held_s
            with _drawing_on(incumbent):
                by_events = clock.is_by_events(arms)
                self._require_fairness(incumbent, by_events=by_events)
                found = self._raced(incumbent, lanes, rule, extra, by_events=by_events)
            part_s = (incumbent.lock.held_s - held_s) / len(lanes)
        except TimingFailed as failed:
            found = [failed.failure] * len(lanes)
        except clock.IncumbentFailed as failed:
            self._acquit_if_lost(incumbent, [failed.failure.status])
            reason = f"the incumbent failed while it was timed: {failed.failure.reason}"
            lost = Disqualified(
                candidate_hash=request.incumbent.hash, status=failed.failure.status, reason=reason
            )
            return ComparisonAnswer(results=(lost,) * len(lanes))
        finally:
            for nurseries in extra:
                nurseries.close()
        self._acquit_if_lost(incumbent, [one.status for one in found if isinstance(one, Failure)])
        return ComparisonAnswer(
            results=tuple(
                _disqualified(lane.bench.candidate, one)
                if isinstance(one, Failure)
                else one.model_copy(update={"seconds": part_s})
                for lane, one in zip(lanes, found, strict=True)
            )
        )

    def _raced(
        self,
        incumbent: Bench,
        lanes: Sequence[clock.Lane],
        rule: KeepRule,
        extra: Sequence[Nurseries],
        *,
        by_events: bool,
    ) -> list[clock.Verdict]:
        """Race challengers; over a dead nursery each goes on alone, and who is alone with one has crashed.

        What was measured before stays in the lanes: dying does not start the evidence again.
        """
        try:
            parents = [partial(_born_from, one) for one in extra]
            return clock.race(incumbent, lanes, rule, parents, by_events=by_events)
        except ServiceDied as died:
            failure = self._bereaved(died, incumbent, extra)
        if len(lanes) == 1:
            return [failure]
        found: list[clock.Verdict] = []
        for lane in lanes:
            lane.bench = self.bench(incumbent.problem, lane.bench.candidate)
            again = self.bench(incumbent.problem, incumbent.candidate)
            found += self._raced(again, [lane], rule, extra, by_events=by_events)
        return found

    def count(self, request: CountCase) -> CounterAnswer:
        """Return the counters of an accepted candidate on a case."""
        bench = self.bench(request.problem, request.candidate)
        (case,) = (one for one in request.problem.cases if one.hash == request.case_hash)
        self.progress(f"{request.candidate.backend}: counters of {case.label}")
        try:
            return CounterAnswer(profile=count(bench, case))
        except ServiceDied as died:
            if died.service != "nursery":
                raise
            self.nurseries.close()
            reason = f"it took its parent process down: {died}"
            lost = CounterProfile(
                case_hash=case.hash, label=case.label, lack=NoCounters.FAILED, reason=reason
            )
            return CounterAnswer(profile=lost)

    def record(self, request: RecordCase) -> RecordingAnswer:
        """Return copies of a candidate's kernels that write down their own steps."""
        bench = self.bench(request.problem, request.candidate)
        (case,) = (one for one in request.problem.cases if one.hash == request.case_hash)
        self.progress(f"{request.candidate.backend}: kernels with records of {case.label}")
        return built(bench, case, self.blobs)

    def _require_fairness(self, bench: Bench, *, by_events: bool) -> None:
        """Race the incumbent against itself before the first comparison by a clock of a device."""
        device, pairs = bench.problem.device, self.settings.gate_pairs
        if (device.hash, by_events) in self.fair or not pairs:
            return
        self.progress("the clock, on one candidate against itself")
        try:
            is_fair = clock.is_fair(bench, pairs, by_events=by_events)
        except ServiceDied as died:
            raise clock.IncumbentFailed(self._bereaved(died, bench)) from died
        if not is_fair:
            raise UnfairClock(device.title, pairs)
        self.fair.add((device.hash, by_events))


def _drawing_on(bench: Bench) -> AbstractContextManager[object]:
    """Draw inputs where they are used: a board case drawn on the host costs seconds."""
    return nullcontext() if bench.is_cpu else torch.device(bench.where)


def _born_from(nurseries: Nurseries, bench: Bench) -> Service:
    return nurseries.of(bench.problem, bench.candidate)


def _disqualified(candidate: Candidate, failure: Failure) -> Disqualified:
    reason = f"the challenger failed while it was timed: {failure.reason}"
    return Disqualified(candidate_hash=candidate.hash, status=failure.status, reason=reason)

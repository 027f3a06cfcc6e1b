"""From a candidate to a verdict: stages in order of cost, stop at the first failure, times only behind all of them."""

import os
import platform
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate
from kernelwright.core.counters import CounterProfile, NoCounters
from kernelwright.core.errors import ServiceDied, UnfairClock
from kernelwright.core.frozen import canonical_json, digest
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
from kernelwright.judge.builds import Builds
from kernelwright.judge.children import Service
from kernelwright.judge.counted import count
from kernelwright.judge.execution import (
    collect,
    compile_ahead,
    compile_cases,
    launches_plans,
    plan_for,
    units_of,
)
from kernelwright.judge.heat import TimingFailed
from kernelwright.judge.native import looked_at
from kernelwright.judge.nurseries import Nurseries
from kernelwright.judge.recorded import built
from kernelwright.judge.screening import Grounds, screen
from kernelwright.judge.stages import Bench, Failure, run_stage
from kernelwright.judge.stages.intake import guards, is_audited
from kernelwright.judge.timing import certify, refuse_interpreted
from kernelwright.store.blobs import Blobs

SHIP_SHAPES = 3
"""Hidden shapes of `ship`, in those of `keep`."""
CONFIRMING_STARTS = 3
"""Separately started parents behind a number that is published."""


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
        self.reference = Service("reference", "kernelwright.judge.reference", self.home, settings.threads)
        self.nurseries = Nurseries(self.home, settings.threads)
        self.fair: set[str] = set()
        """Devices on which no candidate beats itself."""
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
            rng=random.SystemRandom(),
            hidden_shapes=more * self.settings.hidden_shapes,
            progress=self.progress,
            guards_off=self.settings.guards_off,
            testability=self.testability,
        )

    def describe(self, request: Describe) -> Described:
        """Return what a user's module is: the reference loads the file, this process never does."""
        return self.reference.ask(request, [], DESCRIBED)

    def prepare(self, request: Prepare) -> None:
        """Start building a candidate that will be asked about next, on other cores; what fails is told when it is."""
        problem, candidate = request.problem, request.candidate
        bench = self.bench(problem, candidate)
        if guards(bench)[1]:
            return
        if bench.is_planned:
            compile_ahead(candidate, [*problem.cases, *bench.small_cases()], problem.device, self.builds)
        else:
            self.builds.begin(candidate)

    def screen(self, request: Screen) -> ScreeningAnswer:
        """Return a cheap look per trial, in order."""
        grounds = Grounds(partial(self.bench, request.problem), self.nurseries.close, self.anchors)
        with _drawing_on(self.bench(request.problem, request.candidate)):
            return ScreeningAnswer(screenings=screen(request, grounds))

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        """Return the verdict on one candidate."""
        bench = self.bench(problem, candidate, profile)
        with _drawing_on(bench):
            return self._evaluated(bench, profile)

    def _evaluated(self, bench: Bench, profile: Profile) -> Evaluation:
        started, problem, candidate = time.perf_counter(), bench.problem, bench.candidate
        results: list[StageResult] = []
        failure: Failure | None = None
        timing: Timing | None = None
        artefacts: dict[str, str] = {}
        for stage in REQUIRED_STAGES[profile]:
            self.progress(f"{candidate.backend}: {stage.value}")
            if stage is Stage.BUILD and bench.is_planned:
                # On other cores, while the device is at work; what is left of it when a stage fails is dropped.
                # What the early stages ask for comes first.
                public = [case for case in bench.known_cases() if case in bench.op.public_cases()]
                is_laid_out = Stage.LAYOUT in REQUIRED_STAGES[profile]
                laid_out = [way.case for way in bench.layouts] if is_laid_out else []
                wanted = (*bench.small_cases(), *bench.pool, *public, *bench.known_cases(), *laid_out)
                compile_ahead(candidate, wanted, problem.device, self.builds)
            if stage is Stage.TIMING:
                result, failure, timing = self._certified(bench)
            else:
                result, failure = self._run(stage, bench)
            results.append(result)
            if failure:
                self.builds.drop(candidate)
                break
            if stage is Stage.BUILD:
                # Before anything of the candidate runs: what is stored now is what is spliced later.
                artefacts = self._keep_artefacts(candidate, problem)
        return Evaluation(
            candidate_hash=candidate.hash,
            problem_hash=problem.hash,
            device_hash=problem.device.hash,
            profile=profile,
            status=failure.status if failure else Status.ACCEPTED,
            stages=tuple(results),
            timing=None if failure else timing,
            artefact_hashes={} if failure else artefacts,
            resources={} if failure else self._resources(candidate, problem),
            log_hash=self.blobs.put(failure.reason.encode()) if failure else None,
            environment=self._environment(bench),
            seconds=time.perf_counter() - started,
        )

    def _run(self, stage: Stage, bench: Bench) -> tuple[StageResult, Failure | None]:
        """Run a stage; a candidate that takes the nursery down with it has crashed, and a new nursery is started."""
        try:
            return run_stage(stage, bench)
        except ServiceDied as died:
            failure = self._bereaved(died)
            return StageResult(stage=stage, passed=False, seconds=0, reason=failure.reason), failure

    def _certified(self, bench: Bench) -> tuple[StageResult, Failure | None, Timing | None]:
        """Time a candidate; one that takes the nursery down with it has crashed here too."""
        try:
            return certify(bench, self.settings.ceilings)
        except ServiceDied as died:
            failure = self._bereaved(died)
            result = StageResult(stage=Stage.TIMING, passed=False, seconds=0, reason=failure.reason)
            return result, failure, None

    def _bereaved(self, died: ServiceDied, others: Sequence[Nurseries] = ()) -> Failure:
        """Give up all nurseries after the death of one and return what it means; another death is our own failure."""
        if died.service != "nursery":
            raise died
        for nurseries in (self.nurseries, *others):
            nurseries.close()
        return Failure(Status.CRASHED, f"the candidate took its parent process down: {died}")

    def _keep_artefacts(self, candidate: Candidate, problem: Problem) -> dict[str, str]:
        """Store exactly what was judged, so that exactly that is spliced."""
        kept: dict[str, str] = {}
        if plugins.load("backends", candidate.backend).TIER == "A":
            return self._keep_units(candidate, problem)
        for choice in candidate.choices:
            _, path = self.builds.get(candidate, choice.values)
            if path is not None:
                kept[digest(canonical_json(choice.values))] = self.blobs.put(path.read_bytes())
        return kept

    def _keep_units(self, candidate: Candidate, problem: Problem) -> dict[str, str]:
        """Store the compiled kernels of the problem's own cases, by file name; an interpreter has none."""
        if not launches_plans(candidate, problem.device):
            return {}
        compile_cases(candidate, problem.cases, problem.device, self.builds)
        folder = Path(collect(candidate, problem.cases, problem.device, self.builds, self.home))
        kept = {path.name: self.blobs.put(path.read_bytes()) for path in sorted(folder.iterdir())}
        shutil.rmtree(folder)
        return kept

    def _resources(self, candidate: Candidate, problem: Problem) -> dict[str, dict[str, int]]:
        """Return what the compiler told of the kernels of the problem's own cases; the cache has them all."""
        if not launches_plans(candidate, problem.device):
            return {}
        plans = [(plan_for(candidate, case, problem.device), case) for case in problem.cases]
        units = [unit for plan, case in plans for unit in units_of(plan, case)]
        built = self.builds.get_units(candidate, units, problem.device.arch)
        return {unit.hash[:16]: built[unit.hash].resources for unit in units}

    def _environment(self, bench: Bench) -> dict[str, str]:
        audit = {"audit": looked_at(guarded=not bench.guards_off)} if is_audited(bench) else {}
        return {
            **audit,
            "torch": version("torch"),
            "python": platform.python_version(),
            "threads": str(self.settings.threads),
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
        count = CONFIRMING_STARTS if request.confirm else 0
        extra = [Nurseries(self.home, self.settings.threads) for _ in range(count)]
        if incumbent.is_launched:
            for nurseries in extra:
                # All at once: each takes seconds to import, and a GPU's clock does not mind a busy host.
                nurseries.of(problem, request.incumbent)
        try:
            for bench in (incumbent, *(lane.bench for lane in lanes)):
                refuse_interpreted(bench)
            with DeviceLock(problem.device, show=self.progress), _drawing_on(incumbent):
                self._require_fairness(incumbent)
                found = self._raced(incumbent, lanes, rule, extra)
        except TimingFailed as failed:
            found = [failed.failure] * len(lanes)
        except clock.IncumbentFailed as failed:
            reason = f"the incumbent failed while it was timed: {failed.failure.reason}"
            lost = Disqualified(
                candidate_hash=request.incumbent.hash, status=failed.failure.status, reason=reason
            )
            return ComparisonAnswer(results=(lost,) * len(lanes))
        finally:
            for nurseries in extra:
                nurseries.close()
        return ComparisonAnswer(
            results=tuple(
                _disqualified(lane.bench.candidate, one) if isinstance(one, Failure) else one
                for lane, one in zip(lanes, found, strict=True)
            )
        )

    def _raced(
        self, incumbent: Bench, lanes: Sequence[clock.Lane], rule: KeepRule, extra: Sequence[Nurseries]
    ) -> list[clock.Verdict]:
        """Race challengers; over a dead nursery each goes on alone, and who is alone with one has crashed.

        What was measured before stays in the lanes: dying does not start the evidence again.
        """
        try:
            return clock.race(incumbent, lanes, rule, [partial(_born_from, one) for one in extra])
        except ServiceDied as died:
            failure = self._bereaved(died, extra)
        if len(lanes) == 1:
            return [failure]
        found: list[clock.Verdict] = []
        for lane in lanes:
            lane.bench = self.bench(incumbent.problem, lane.bench.candidate)
            found += self._raced(self.bench(incumbent.problem, incumbent.candidate), [lane], rule, extra)
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

    def _require_fairness(self, bench: Bench) -> None:
        """Race the incumbent against itself before the first comparison on a device."""
        device, pairs = bench.problem.device, self.settings.gate_pairs
        if device.hash in self.fair or not pairs:
            return
        self.progress("the clock, on one candidate against itself")
        try:
            is_fair = clock.is_fair(bench, pairs)
        except ServiceDied as died:
            raise clock.IncumbentFailed(self._bereaved(died)) from died
        if not is_fair:
            raise UnfairClock(device.title, pairs)
        self.fair.add(device.hash)


def _drawing_on(bench: Bench) -> AbstractContextManager[object]:
    """Draw inputs where they are used: a board case drawn on the host costs seconds."""
    return nullcontext() if bench.is_cpu else torch.device(bench.where)


def _born_from(nurseries: Nurseries, bench: Bench) -> Service:
    return nurseries.of(bench.problem, bench.candidate)


def _disqualified(candidate: Candidate, failure: Failure) -> Disqualified:
    reason = f"the challenger failed while it was timed: {failure.reason}"
    return Disqualified(candidate_hash=candidate.hash, status=failure.status, reason=reason)

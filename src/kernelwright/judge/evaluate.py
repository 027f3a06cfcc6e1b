"""From a candidate to a verdict: stages in order of cost, stop at the first failure, times only behind all of them."""

import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate
from kernelwright.core.errors import ServiceDied
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.messages import ComparisonAnswer, Disqualified, JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.stats import KeepRule, mad
from kernelwright.core.verdict import (
    REQUIRED_STAGES,
    CaseTiming,
    Evaluation,
    Profile,
    Stage,
    StageResult,
    Status,
    Timing,
)
from kernelwright.judge import clock, device_clock
from kernelwright.judge.builds import Builds
from kernelwright.judge.children import Service
from kernelwright.judge.execution import launches_plans
from kernelwright.judge.stages import Bench, Failure, run_stage
from kernelwright.store.blobs import Blobs

TIMING_PAIRS = 3
"""Fresh process pairs behind a certified timing."""


class Judge:
    """The judge of one run: its children, its cache, its secrets."""

    def __init__(self, settings: JudgeSettings, progress: Callable[[str], None]) -> None:
        self.settings = settings
        self.progress = progress
        self.scratch = tempfile.TemporaryDirectory(prefix="kernelwright-judge-", ignore_cleanup_errors=True)
        self.home = Path(self.scratch.name)
        self.builds = Builds(Path(settings.cache_folder), self.home, os.cpu_count() or 1)
        self.blobs = Blobs(Path(settings.blob_folder))
        self.reference = Service("reference", "kernelwright.judge.reference", self.home, settings.threads)
        self.nursery = self._start_nursery()

    def close(self) -> None:
        """Kill every child and leave nothing on disk but cache and blobs."""
        self.nursery.close()
        self.reference.close()
        self.scratch.cleanup()

    def bench(self, problem: Problem, candidate: Candidate) -> Bench:
        """Return what the stages work on: this judge's children and fresh randomness."""
        return Bench(
            problem=problem,
            candidate=candidate,
            builds=self.builds,
            nursery=self.nursery,
            reference=self.reference,
            home=self.home,
            rng=random.SystemRandom(),
            hidden_shapes=self.settings.hidden_shapes,
            progress=self.progress,
        )

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        """Return the verdict on one candidate."""
        started, bench = time.perf_counter(), self.bench(problem, candidate)
        results: list[StageResult] = []
        failure: Failure | None = None
        timing: Timing | None = None
        artefacts: dict[str, str] = {}
        for stage in REQUIRED_STAGES[profile]:
            self.progress(f"{candidate.backend}: {stage.value}")
            if stage is Stage.TIMING:
                result, failure, timing = self._time(bench)
            else:
                result, failure = self._run(stage, bench)
            results.append(result)
            if failure:
                break
            if stage is Stage.BUILD:
                # Before anything of the candidate runs: what is stored now is what is spliced later.
                artefacts = self._keep_artefacts(candidate)
        return Evaluation(
            candidate_hash=candidate.hash,
            problem_hash=problem.hash,
            device_hash=problem.device.hash,
            profile=profile,
            status=failure.status if failure else Status.ACCEPTED,
            stages=tuple(results),
            timing=None if failure else timing,
            artefact_hashes={} if failure else artefacts,
            log_hash=self.blobs.put(failure.reason.encode()) if failure else None,
            environment=self._environment(),
            seconds=time.perf_counter() - started,
        )

    def _run(self, stage: Stage, bench: Bench) -> tuple[StageResult, Failure | None]:
        """Run a stage; a candidate that takes the nursery down with it has crashed, and a new nursery is started."""
        try:
            return run_stage(stage, bench)
        except ServiceDied as died:
            if died.service != "nursery":
                raise
            self.nursery.close()
            self.nursery = self._start_nursery()
            failure = Failure(Status.CRASHED, f"the candidate took its parent process down: {died}")
            return StageResult(stage=stage, passed=False, seconds=0, reason=failure.reason), failure

    def _start_nursery(self) -> Service:
        return Service("nursery", "kernelwright.worker.nursery", self.home, self.settings.threads)

    def _time(self, bench: Bench) -> tuple[StageResult, Failure | None, Timing | None]:
        started, failure = time.perf_counter(), None
        cases = []
        try:
            on_device = launches_plans(bench.candidate, bench.problem.device)
            for case in bench.problem.cases:
                times = (
                    device_clock.time_alone(bench, case)
                    if on_device
                    else clock.time_alone(bench, case, TIMING_PAIRS)
                )
                cases.append(
                    CaseTiming(
                        case_hash=case.hash,
                        label=case.label,
                        median_us=median(times),
                        mad_us=mad(times),
                        rounds=len(times),
                    )
                )
        except clock.TimingFailed as failed:
            failure = failed.failure
        result = StageResult(
            stage=Stage.TIMING,
            passed=failure is None,
            seconds=time.perf_counter() - started,
            checked=len(cases),
            reason=failure.reason if failure else "",
            failing_case=failure.case.label if failure and failure.case else None,
        )
        if failure:
            return result, failure, None
        return (
            result,
            None,
            Timing(clock="launcher-events" if on_device else "judge-slope", cases=tuple(cases)),
        )

    def _keep_artefacts(self, candidate: Candidate) -> dict[str, str]:
        """Store exactly what was judged, so that exactly that is spliced."""
        kept: dict[str, str] = {}
        if plugins.load("backends", candidate.backend).TIER == "A":
            return kept
        for choice in candidate.choices:
            _, path = self.builds.get(candidate, choice.values)
            if path is not None:
                kept[digest(canonical_json(choice.values))] = self.blobs.put(path.read_bytes())
        return kept

    def _environment(self) -> dict[str, str]:
        return {
            "torch": version("torch"),
            "python": platform.python_version(),
            "threads": str(self.settings.threads),
            "sandbox": "process: own session, limits, scratch environment and folder",
        }

    def compare(
        self, problem: Problem, incumbent: Candidate, challenger: Candidate
    ) -> ComparisonAnswer | Disqualified:
        """Return the paired comparison of two accepted candidates."""
        rule = KeepRule(alpha=self.settings.alpha, max_pairs=self.settings.max_pairs)
        try:
            found = clock.compare(self.bench(problem, incumbent), self.bench(problem, challenger), rule)
        except clock.TimingFailed as failed:
            reason = f"the {failed.arm} failed while it was timed: {failed.failure.reason}"
            return Disqualified(status=failed.failure.status, reason=reason)
        return ComparisonAnswer(comparison=found)

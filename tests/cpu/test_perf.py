"""Counters of real C++ kernels in real runners: fresh pages, busy threads, what is missing, and the cache."""

from pathlib import Path

import pytest

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate
from kernelwright.core.case import DType
from kernelwright.core.counters import CounterProfile, NoCounters
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node
from kernelwright.core.verdict import (
    REQUIRED_STAGES,
    CaseTiming,
    Evaluation,
    Profile,
    StageResult,
    Status,
    Timing,
)
from kernelwright.engine.diagnosing import metrics_of
from kernelwright.engine.profiling import counted_calls
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware import perf
from kernelwright.hardware.detect import cpu_device
from kernelwright.hardware.diagnose import diagnose
from kernelwright.judge.counted import WALL, per_call
from kernelwright.ops import rmsnorm
from tests.cpu.conftest import cpp

SEED = (Path(plugins.__file__).parents[1] / "seeds" / "rmsnorm" / "cpp.cpp").read_text()
ENTRY = "const kw_tensor* out) {\n    if (x->dtype"
FRESH = """const kw_tensor* out) {
    void* scratch = mmap(nullptr, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(scratch, 8 << 20, MADV_NOHUGEPAGE);
    for (int64_t byte = 0; byte < 8 << 20; byte += 4096) static_cast<volatile char*>(scratch)[byte] = 1;
    munmap(scratch, 8 << 20);
    if (x->dtype"""
UNCOUNTED = "const kw_tensor* out) {\n    prctl(31, 0, 0, 0, 0);\n    if (x->dtype"
LOOP = "#pragma omp parallel for schedule(static) if (rows * cols >= GRAIN)\n"
ONE_WORKS = """#pragma omp parallel num_threads(2)
    if (omp_get_thread_num() == 0)
"""


def rewritten(old: str, new: str, include: str) -> Candidate:
    """Return the seed with one place changed."""
    assert SEED.count(old) == 1, old
    return cpp(f"#include <{include}>\n{SEED.replace(old, new)}")


@pytest.fixture(scope="module")
def big() -> Problem:
    """Return a problem whose calls take about a millisecond: threads are not still being woken."""
    case = rmsnorm.case({"rows": 1024, "cols": 2048}, DType.FP32)
    return Problem(op="rmsnorm", cases=(case,), device=cpu_device())


def counted(judge: JudgeClient, problem: Problem, candidate: Candidate) -> CounterProfile:
    found = judge.count(problem, candidate, problem.cases[0].hash)
    assert found.metrics, found.reason
    return found


def busy_threads(judge: JudgeClient, problem: Problem, candidate: Candidate, enough: float) -> float:
    """Return the most threads that a few counts found busy: others on the same cores only ever take some away."""
    busiest = 0.0
    for _ in range(8):
        busiest = max(busiest, counted(judge, problem, candidate).metrics[perf.THREADS_BUSY])
        if busiest > enough:
            break
    return busiest


def judged(problem: Problem, candidate: Candidate, time_us: float) -> Node:
    """Return a candidate with a certified time."""
    (case,) = problem.cases
    timing = CaseTiming(case_hash=case.hash, label=case.label, median_us=time_us, mad_us=0.0, rounds=4)
    verdict = Evaluation(
        candidate_hash=candidate.hash,
        problem_hash=problem.hash,
        device_hash=problem.device.hash,
        profile=Profile.KEEP,
        status=Status.ACCEPTED,
        stages=tuple(
            StageResult(stage=stage, passed=True, seconds=0.0) for stage in REQUIRED_STAGES[Profile.KEEP]
        ),
        timing=Timing(clock="judge-slope", cases=(timing,)),
        environment={"threads": "2"},
        seconds=0.0,
    )
    return Node(candidate, problem.hash, seq=0, evaluations=[verdict])


def test_memory_taken_anew_in_each_call_shows_as_page_faults_and_is_diagnosed(
    judge: JudgeClient, problem: Problem
) -> None:
    candidate = rewritten(ENTRY, FRESH, "sys/mman.h")
    found = counted(judge, problem, candidate)
    assert found.metrics[perf.PAGE_FAULTS] == pytest.approx(2048, rel=0.01)
    node = judged(problem, candidate, found.time_us)
    node.profiles.append(found)
    (first, *_) = diagnose(metrics_of(problem, node, problem.cases[0]), problem.device.kind)
    assert first.category.value == "memory latency"
    assert {one.metric for one in first.evidence} == {perf.FAULTS_PCT, perf.PAGE_FAULTS}


def test_a_warm_kernel_without_scratch_faults_no_more_and_what_is_missing_is_listed(
    judge: JudgeClient, problem: Problem
) -> None:
    found = counted(judge, problem, cpp(SEED))
    assert found.metrics[perf.PAGE_FAULTS] < 0.05
    assert found.case_hash == problem.cases[0].hash
    assert found.kernels[0].metrics == found.metrics
    assert set(found.missing) == {event.name for event in perf.EVENTS} - set(found.metrics)
    if missing := [name for name in perf.HARDWARE if name in found.missing]:
        assert all(name in found.reason for name in missing)
    else:  # a machine with a PMU
        assert 0.05 < found.metrics[perf.IPC] < 8
        assert found.lack is NoCounters.NONE


@pytest.mark.parametrize(("loop", "least", "most"), [(ONE_WORKS, 0.8, 1.3), (LOOP, 1.4, 2.1)])
def test_busy_threads_are_those_that_work(
    judge: JudgeClient, big: Problem, loop: str, least: float, most: float
) -> None:
    assert least < busy_threads(judge, big, rewritten(LOOP, loop, "omp.h"), least) < most


def test_a_kernel_cannot_switch_its_counters_off(judge: JudgeClient, big: Problem) -> None:
    assert busy_threads(judge, big, rewritten(ENTRY, UNCOUNTED, "sys/prctl.h"), 0.8) > 0.8


def test_a_kernel_that_fails_while_it_is_counted_is_a_reason_and_no_exception(
    judge: JudgeClient, problem: Problem
) -> None:
    crashing = rewritten(ENTRY, ENTRY.replace("if", "__builtin_trap();\n    if"), "cmath")
    found = judge.count(problem, crashing, problem.cases[0].hash)
    assert (found.lack, found.metrics) == (NoCounters.FAILED, {})
    assert "SIGILL" in found.reason


def test_calls_are_counted_once_per_candidate_workload_and_device(
    judge: JudgeClient, problem: Problem, tmp_path: Path
) -> None:
    node = judged(problem, cpp(SEED), 30.0)
    first = counted_calls(problem, node, judge, tmp_path)
    again = counted_calls(problem, node, judge, tmp_path)
    assert first.seconds > 0
    # Counted anew, the nanoseconds of the processor would be others.
    assert again == first.model_copy(update={"seconds": 0.0})
    other = judged(problem, cpp(f"{SEED}\n// another\n"), 30.0)
    assert counted_calls(problem, other, judge, tmp_path).seconds > 0
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_batch_of_no_calls_takes_is_taken_off() -> None:
    empty = [
        {WALL: 100.0, "page-faults": 2.0},
        {WALL: 120.0, "page-faults": 2.0},
        {WALL: 900.0, "page-faults": 9.0},
    ]
    full = [
        {WALL: 1120.0, "page-faults": 2.0},
        {WALL: 1100.0, "page-faults": 1.0},
        {WALL: 5000.0, "page-faults": 2.0},
    ]
    assert per_call(empty, full, 10) == {WALL: 100.0, "page-faults": 0.0}
    assert per_call(empty, empty, 10)[WALL] == 12.0

"""The timing stage: certified times behind all other stages, against what the hardware can do at all."""

import time
from statistics import median

from kernelwright.core.case import Case
from kernelwright.core.device import Ceilings, DeviceKind
from kernelwright.core.roofline import floor_us
from kernelwright.core.stats import mad
from kernelwright.core.verdict import CaseTiming, Stage, StageResult, Status, Timing
from kernelwright.judge import clock, device_heat
from kernelwright.judge.heat import TimingFailed
from kernelwright.judge.impossible import impossible
from kernelwright.judge.stages import Bench, Failure

HEATS = 4
"""Behind a certified timing: of fresh processes; on a GPU of two launchers in turn, which load the kernel anew."""
CACHED = 4
"""A CPU's floor is of main memory: it binds a case only if its buffers exceed the last-level cache this many times."""


def certify(bench: Bench, ceilings: Ceilings | None) -> tuple[StageResult, Failure | None, Timing | None]:
    """Time every case of the problem, alone on the device."""
    started, failure = time.perf_counter(), None
    cases: list[CaseTiming] = []
    try:
        refuse_interpreted(bench)
        with bench.lock:
            for case in bench.problem.cases:
                cases.append(_timed(bench, case, ceilings))
    except TimingFailed as failed:
        failure = failed.failure
    result = StageResult(
        stage=Stage.TIMING,
        passed=failure is None,
        seconds=time.perf_counter() - started,
        checked=len(cases),
        reason=failure.reason if failure else "",
        failing_case=failure.case.label if failure and failure.case else None,
        failing_scalars=failure.case.scalars if failure and failure.case else {},
    )
    whose = "launcher-events" if bench.is_launched else "judge-slope"
    return result, failure, None if failure else Timing(clock=whose, cases=tuple(cases))


def _timed(bench: Bench, case: Case, ceilings: Ceilings | None) -> CaseTiming:
    warm_us: float | None = None
    if bench.is_launched:
        times, warm_us = device_heat.time_alone(bench, case, HEATS)
    else:
        times = clock.time_alone(bench, case, HEATS)
    call_us = median(times)
    if failure := impossible(bench, case, call_us):
        raise TimingFailed(0, failure)
    return CaseTiming(
        case_hash=case.hash,
        label=case.label,
        median_us=call_us,
        mad_us=mad(times),
        rounds=len(times),
        floor_us=_floor(bench, case, ceilings),
        warm_us=warm_us,
    )


def _floor(bench: Bench, case: Case, ceilings: Ceilings | None) -> float | None:
    """Return the floor of a case where one is known and binds: of what a CPU keeps in its cache none is.

    Arithmetic alone would give one that honest kernels pass, and that ends searches with much to win: calibrations said
    163 GFLOP/s of fp32 a core, and 58 while the cores were busy, where a loop of multiply-adds does 287 (Zen 5).
    """
    if ceilings is None:
        return None
    work, device = bench.op.work(case), bench.problem.device
    if device.kind is DeviceKind.CPU and work.bytes_moved < CACHED * device.cache_bytes:
        return None
    return floor_us(work, ceilings)


def refuse_interpreted(bench: Bench) -> None:
    """Refuse to time what an interpreter runs: its speed says nothing of the kernel's."""
    if bench.is_interpreted:
        reason = "correctness only: no GPU here to time it on"
        raise TimingFailed(0, Failure(Status.UNSUPPORTED, reason))

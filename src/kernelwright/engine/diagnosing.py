"""What a run already knows of a candidate, as metrics, and what the judge of bottlenecks makes of them.

Collected from the verdict (certified times, what the compiler told), the work of the case, the ceilings of the device
and the launch plan; counters come on top where a profiler ran. One case speaks for the problem: the one that has most
to win.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from kernelwright.core import plugins
from kernelwright.core.case import Case
from kernelwright.core.device import Ceiling, Ceilings, Device, DeviceKind
from kernelwright.core.diagnosis import Diagnosis, Metric, MetricSource
from kernelwright.core.plan import Launch, LaunchPlan, kernel_unit
from kernelwright.core.plan_language import PlanFault, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.problem import Problem
from kernelwright.core.roofline import Work, memory_time_us
from kernelwright.core.search import last_verdict
from kernelwright.core.technique import Technique
from kernelwright.core.tree import Node
from kernelwright.core.verdict import CaseTiming, Evaluation
from kernelwright.hardware import bottleneck_rules as names
from kernelwright.hardware.diagnose import diagnose
from kernelwright.hardware.occupancy import WARP, occupancy, waves
from kernelwright.hardware.peaks import peak

MATRIX_CLASSES = ("tf32", "fp16", "bf16", "fp8")
"""Compute classes that GPUs have matrix units for."""
MATRIX_KINDS = ("wgmma", "tcgen05", "mma", "mfma", "wmma")
"""Matrix instructions, as the backends count them."""
COPY_ENGINES = ("cp_async", "tma_load")
"""Loads that pass the registers by: how wide they are is not the threads' affair."""
LOADS = re.compile(r"ld_global_\d+B")
FITS_CACHE = 0.5
"""Share of the last-level cache that a case may take for a second call to find its data there."""
PARALLEL = re.compile(r"^\s*#\s*pragma\s+omp\s+.*\bparallel\b|\bstd::j?thread\b", re.MULTILINE)


def diagnoses_of(
    problem: Problem,
    node: Node,
    cards: Sequence[Technique],
    ceilings: Ceilings | None = None,
    counters: Iterable[Metric] = (),
) -> list[Diagnosis]:
    """Return what a candidate waits for on the case that has most to win; nothing without a certified time."""
    case = telling_case(problem, node)
    if case is None:
        return []
    metrics = (*metrics_of(problem, node, case, ceilings), *counters)
    return diagnose(metrics, problem.device.kind, cards, case.label)


def telling_case(problem: Problem, node: Node) -> Case | None:
    """Return the case with the most weight above its floor; None if no case has a certified time."""
    timings = {} if (verdict := _verdict(node)) is None else _timings(verdict)

    def room(case: Case) -> float:
        timing = timings[case.hash]
        return case.weight * max(0.0, 1 - (timing.floor_us or 0.0) / timing.median_us)

    return max((case for case in problem.cases if case.hash in timings), key=room, default=None)


def metrics_of(
    problem: Problem, node: Node, case: Case, ceilings: Ceilings | None = None
) -> tuple[Metric, ...]:
    """Return everything the run knows of a candidate on a case; without ceilings the data sheet tells the sides."""
    verdict = _verdict(node)
    timing = _timings(verdict).get(case.hash) if verdict else None
    if verdict is None or timing is None:
        return ()
    work: Work = plugins.load("ops", problem.op).work(case)
    found = timed_metrics(timing, work, problem.device, ceilings)
    if problem.device.kind is DeviceKind.CPU:
        found += _threaded(node, verdict)
    elif plugins.load("backends", node.candidate.backend).TIER == "A":
        found += _launched(node, case, problem.device, verdict)
    for profile in node.profiles:
        found += profile.as_metrics() if profile.case_hash == case.hash else ()
    return tuple(found)


def timed_metrics(
    timing: CaseTiming, work: Work, device: Device, ceilings: Ceilings | None = None
) -> list[Metric]:
    """Return what follows from a time: cold against warm, and where it lies under the roofline."""
    return [*_timed(timing, work, device), *_placed(timing, work, device, ceilings)]


def _verdict(node: Node) -> Evaluation | None:
    """Return the last verdict if it is a certified time: what failed is mended first."""
    verdict = last_verdict(node)
    return verdict if verdict and verdict.timing else None


def _timings(verdict: Evaluation) -> dict[str, CaseTiming]:
    return {one.case_hash: one for one in verdict.timing.cases} if verdict.timing else {}


def _metric(name: str, value: float, unit: str, source: MetricSource) -> Metric:
    return Metric(name=name, value=value, unit=unit, source=source)


def _timed(timing: CaseTiming, work: Work, device: Device) -> list[Metric]:
    """Return the certified times, and cold against warm where the case fits the cache."""
    found = [_metric(names.TIME, timing.median_us, "us", MetricSource.TIMING)]
    if timing.floor_us:
        share = 100 * timing.floor_us / timing.median_us
        found.append(_metric("floor_us", timing.floor_us, "us", MetricSource.ROOFLINE))
        found.append(_metric(names.FLOOR_PCT, share, "%", MetricSource.ROOFLINE))
    if timing.warm_us is not None and work.bytes_moved <= FITS_CACHE * device.cache_bytes:
        share = 100 * timing.warm_us / timing.median_us
        found.append(_metric("warm_us", timing.warm_us, "us", MetricSource.TIMING))
        found.append(_metric(names.WARM_PCT, share, "%", MetricSource.TIMING))
    return found


def _placed(timing: CaseTiming, work: Work, device: Device, ceilings: Ceilings | None) -> list[Metric]:
    """Return where the case lies under the roofline: what its bytes, its arithmetic and its start take at least."""
    time_us, roofline = timing.median_us, MetricSource.ROOFLINE
    found = [
        _metric(names.BYTES_READ, work.bytes_read, "bytes", roofline),
        _metric(names.BYTES_WRITTEN, work.bytes_written, "bytes", roofline),
        _metric("flops", work.flops, "", roofline),
    ]
    ceilings = ceilings or _from_sheet(timing, work, device)
    if ceilings is None:
        return found
    fixed_us = ceilings.reading.fixed_us
    if fixed_us:
        found.append(_metric(names.FIXED_PCT, 100 * fixed_us / time_us, "%", roofline))
    if rate := ceilings.flops.get(work.compute_class):
        arithmetic_us = work.flops / rate * 1e6
        found.append(_metric(names.ARITHMETIC_FLOOR, arithmetic_us, "us", roofline))
        found.append(_metric(names.FLOPS_PCT, 100 * arithmetic_us / time_us, "%", roofline))
        if device.kind is not DeviceKind.CPU and work.compute_class in MATRIX_CLASSES:
            found.append(_metric(names.MATRIX_PCT, 100 * arithmetic_us / time_us, "%", roofline))
    # A CPU's case that fits the cache has no floor: its bytes need not come from memory.
    if timing.floor_us or device.kind is not DeviceKind.CPU:
        memory_us = memory_time_us(work, ceilings) - fixed_us
        found.append(_metric(names.MEMORY_FLOOR, memory_us, "us", roofline))
        found.append(_metric(names.BYTES_PCT, 100 * memory_us / time_us, "%", roofline))
    elif device.cache_bytes:
        found.append(_metric(names.CACHE_PCT, 100 * work.bytes_moved / device.cache_bytes, "%", roofline))
    return found


def _from_sheet(timing: CaseTiming, work: Work, device: Device) -> Ceilings | None:
    """Return the data sheet's ceilings, lowered to the certified floor where there is one; None if none is known."""
    row = peak(device)
    if row is None:
        return None
    memory_us = work.bytes_moved / row.bandwidth * 1e6
    arithmetic_us = work.flops / row.flops.get(work.compute_class, math.inf) * 1e6
    longest = max(memory_us, arithmetic_us)
    lowered = min(1.0, longest / timing.floor_us) if timing.floor_us else 1.0
    stream = Ceiling(fixed_us=0, rate=row.bandwidth * (lowered if memory_us == longest else 1.0))
    rates = row.flops if memory_us == longest else {name: rate * lowered for name, rate in row.flops.items()}
    return Ceilings(copying=stream, reading=stream, flops=rates)


def _threaded(node: Node, verdict: Evaluation) -> list[Metric]:
    """Return how many threads a CPU candidate may use, and in how many places it uses them."""
    threads = verdict.environment.get("threads", "")
    if node.candidate.backend != "cpp" or not threads.isdecimal():
        return []
    regions = len(PARALLEL.findall(node.candidate.source))
    return [
        _metric(names.CPU_THREADS, int(threads), "", MetricSource.TIMING),
        _metric(names.PARALLEL_REGIONS, regions, "", MetricSource.SOURCE),
    ]


def _launched(node: Node, case: Case, device: Device, verdict: Evaluation) -> list[Metric]:
    """Return what a judged candidate launches, and what the compiler told of it."""
    candidate = node.candidate
    try:
        plan = run_plan(parse_plan(candidate.source), case, candidate.values_for(case.hash), device)
    except PlanFault:
        return []  # it has a certified time, so its plan runs: this device is described in less detail
    return built_metrics(plan, case, device, verdict.resources)


def built_metrics(
    plan: LaunchPlan, case: Case, device: Device, told_of: Mapping[str, dict[str, int]]
) -> list[Metric]:
    """Return what a plan launches and what the compiler told of its largest kernel, by the start of its unit's hash."""
    launches = [launch for launch in plan.launches if math.prod(launch.grid)]
    if not launches:
        return []
    told = [(one, told_of.get(kernel_unit(one, case).hash[:16], {})) for one in launches]
    largest, resources = max(told, key=lambda one: math.prod(one[0].grid) * _threads(*one))
    return [
        _metric(names.LAUNCHES, len(launches), "", MetricSource.PLAN),
        *_filled(largest, resources, device),
        *_compiled(resources),
    ]


def _threads(launch: Launch, resources: dict[str, int]) -> int:
    """Return the threads of a block: the plan's, else what the compiler made, else what was asked of it."""
    if launch.block is not None:
        return math.prod(launch.block)
    return resources.get("threads") or int(launch.meta.get("num_warps", 4)) * WARP


def _filled(launch: Launch, resources: dict[str, int], device: Device) -> list[Metric]:
    """Return how a launch fills the device: warps on a multiprocessor, waves of blocks."""
    blocks, threads = math.prod(launch.grid), _threads(launch, resources)
    found = [
        _metric("blocks", blocks, "", MetricSource.PLAN),
        _metric("threads", threads, "", MetricSource.PLAN),
    ]
    shared = resources.get("shared_bytes", resources.get("shared_static", 0) + launch.shared_bytes)
    fill = occupancy(device.arch, threads, resources.get("registers", 0), shared)
    if fill is None or not fill.blocks or "registers" not in resources:
        # How many blocks share a multiprocessor is not known, but more than one each there cannot be.
        idle = waves(blocks, 1, device.units) if blocks < device.units else None
    else:
        idle = waves(blocks, fill.blocks, device.units)
        found.append(_metric(names.WARPS_PCT, fill.pct, "%", MetricSource.COMPILER))
    if idle is not None:
        found.append(_metric("waves", idle.count, "", MetricSource.PLAN))
        found.append(_metric(names.IDLE_PCT, idle.idle_pct, "%", MetricSource.PLAN))
    return found


def _compiled(resources: dict[str, int]) -> list[Metric]:
    """Return what the compiler told of a kernel, in one vocabulary for every language."""
    if not resources:
        return []
    spilled = resources.get("spill_bytes")
    if spilled is None:
        spilled = resources.get("spill_store_bytes", 0) + resources.get("spill_load_bytes", 0)
    told = {
        "registers": resources.get("registers"),
        names.SPILL_BYTES: spilled,
        names.MATRIX_INSTRUCTIONS: sum(resources.get(kind, 0) for kind in MATRIX_KINDS),
        names.SERIALIZED: resources.get("wgmma_serialized"),
        names.WIDE_LOADS_PCT: _wide_loads_pct(resources),
    }
    return [
        _metric(name, value, "%" if name == names.WIDE_LOADS_PCT else "", MetricSource.COMPILER)
        for name, value in told.items()
        if value is not None
    ]


def _wide_loads_pct(resources: dict[str, int]) -> float | None:
    """Return the share of loads of 16 bytes and more; None where copy engines load, or nobody does."""
    widths = {int(kind[10:-1]): count for kind, count in resources.items() if LOADS.fullmatch(kind)}
    loads = resources.get("ld_global") or sum(
        widths.values()
    )  # CUDA's report has no width but 16 bytes, and a total
    if not loads or any(resources.get(kind) for kind in COPY_ENGINES):
        return None
    return 100 * sum(count for width, count in widths.items() if width >= 16) / loads

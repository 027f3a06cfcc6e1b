"""The rules of the deterministic judge of bottlenecks, as a table: what must hold, why there, and what is then said.

A rule speaks only if every metric it needs is there. Counters have the names Nsight Compute gives them on sm_80 and
later; the others are ours and are collected by `engine/diagnosing`. Rules on counters of a CPU are in `perf_rules`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelwright.core.device import DeviceKind
from kernelwright.core.diagnosis import Relation
from kernelwright.core.technique import Bottleneck
from kernelwright.hardware.perf import MISSES_PER_1000, THREADS_BUSY

TIME = "time_us"
FLOOR_PCT = "floor_pct"
BYTES_PCT = "bytes_pct"
FLOPS_PCT = "flops_pct"
MATRIX_PCT = "matrix_pct"
FIXED_PCT = "fixed_pct"
WARM_PCT = "warm_pct"
MEMORY_FLOOR = "memory_floor_us"
ARITHMETIC_FLOOR = "arithmetic_floor_us"
BYTES_READ = "bytes_read"
BYTES_WRITTEN = "bytes_written"
LAUNCHES = "launches"
IDLE_PCT = "idle_pct"
WARPS_PCT = "resident_warps_pct"
SPILL_BYTES = "spill_bytes"
MATRIX_INSTRUCTIONS = "matrix_instructions"
SERIALIZED = "wgmma_serialized"
WIDE_LOADS_PCT = "wide_loads_pct"
PARALLEL_REGIONS = "parallel_regions"
CPU_THREADS = "cpu_threads"
CACHE_PCT = "cache_pct"

SM_BUSY = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_BUSY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_READ = "dram__bytes_read.sum"
DRAM_WRITTEN = "dram__bytes_write.sum"
WARPS_ACTIVE = "sm__warps_active.avg.pct_of_peak_sustained_active"
TENSOR_BUSY = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
XU_BUSY = "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"
ISSUE_BUSY = "smsp__issue_active.avg.pct_of_peak_sustained_active"
WAITS_FOR_LOADS = "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct"
WAITS_FOR_SHARED = "smsp__warp_issue_stalled_short_scoreboard_per_warp_active.pct"
WAITS_AT_BARRIERS = "smsp__warp_issue_stalled_barrier_per_warp_active.pct"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
LOADED_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct"
STORED_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct"
SECTORS_PER_LOAD = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
LOCAL_LOADS = "smsp__inst_executed_op_local_ld.sum"
INSTRUCTIONS = "smsp__inst_executed.sum"
LANES_ACTIVE = "smsp__thread_inst_executed_per_inst_executed.ratio"
WAVES = "launch__waves_per_multiprocessor"
COUNTERS = (
    *(SM_BUSY, DRAM_BUSY, DRAM_READ, DRAM_WRITTEN, WARPS_ACTIVE, TENSOR_BUSY, XU_BUSY, ISSUE_BUSY),
    *(WAITS_FOR_LOADS, WAITS_FOR_SHARED, WAITS_AT_BARRIERS, CONFLICTS, SHARED_WAVEFRONTS),
    *(LOADED_USED, STORED_USED, SECTORS_PER_LOAD, LOCAL_LOADS, INSTRUCTIONS, LANES_ACTIVE, WAVES),
)
"""Every counter a rule reads: what a profiler has to collect."""

Values = Mapping[str, float]
GPUS = (DeviceKind.CUDA, DeviceKind.ROCM)
CPUS = (DeviceKind.CPU,)


@dataclass(frozen=True)
class Condition:
    """A metric on one side of a threshold; with `of`, the threshold is a share of another metric."""

    metric: str
    relation: Relation
    threshold: float
    of: str = ""
    if_known: bool = False
    """Whether a missing metric is no objection."""

    @property
    def text(self) -> str:
        """Return it as a table tells it."""
        share = f" x {self.of}" if self.of else ""
        known = " (if known)" if self.if_known else ""
        return f"{self.metric} {self.relation.value} {self.threshold:g}{share}{known}"


@dataclass(frozen=True)
class Rule:
    """When a bottleneck is diagnosed, and what is said of it."""

    category: Bottleneck
    conditions: tuple[Condition, ...]
    """All must hold; the ones that may be unknown come last."""
    severity: Callable[[Values], float]
    """Share of the time it stands for."""
    sentence: str
    """Words with the values of the conditions in order; no other category is named in them."""
    reason: str
    """Why the thresholds are where they are."""
    kinds: tuple[DeviceKind, ...] = GPUS
    """Devices it is about."""
    unless: str = ""
    """A metric that knows better: where it is there, this rule is silent."""
    is_limit: bool = False
    """Whether it is what the floor itself is made of; all others can cost no more than what lies above the floor."""


def least(metric: str, threshold: float, of: str = "", *, if_known: bool = False) -> Condition:
    """Return the condition that a metric reaches a threshold."""
    return Condition(metric, Relation.AT_LEAST, threshold, of, if_known)


def most(metric: str, threshold: float, of: str = "", *, if_known: bool = False) -> Condition:
    """Return the condition that a metric does not exceed a threshold."""
    return Condition(metric, Relation.AT_MOST, threshold, of, if_known)


def share(metric: str) -> Callable[[Values], float]:
    """Return a severity: the percentage a metric is."""
    return lambda values: values[metric] / 100


def lack(metric: str, weight: float = 1.0) -> Callable[[Values], float]:
    """Return a severity: what a percentage leaves to a hundred."""
    return lambda values: weight * (1 - values[metric] / 100)


def _useful(values: Values) -> float:
    """Return the share of the bytes on the bus that had to be there; all of them where that is not known."""
    wanted = (BYTES_READ, BYTES_WRITTEN, DRAM_READ, DRAM_WRITTEN)
    needed_read, needed_written, read, written = (values.get(name) for name in wanted)
    if needed_read is None or needed_written is None or read is None or written is None or not read + written:
        return 1.0
    return min(1.0, (needed_read + needed_written) / (read + written))


BUSY = 60.0
"""Per cent from which on a unit counts as the limit: where the profiler's own guided analysis draws the line."""
FULL = 90.0
"""Per cent of a measured rate at which a kernel is as good as the plain stream or product the rate was taken from."""
STALLED = 30.0
"""Per cent of a warp's time in one kind of wait from which on the profiler's own analysis reports it."""
ON_MEMORY_SIDE = least(MEMORY_FLOOR, 1, of=ARITHMETIC_FLOOR)
ON_ARITHMETIC_SIDE = least(ARITHMETIC_FLOOR, 1, of=MEMORY_FLOOR)
NOT_ON_ARITHMETIC_SIDE = least(MEMORY_FLOOR, 1, of=ARITHMETIC_FLOOR, if_known=True)
NOT_ALL_START = most(FIXED_PCT, 50, if_known=True)
# What waiting for memory has as its cause: where a counter names the cause, the symptom is silent.
WHOLE_SECTORS = (least(LOADED_USED, 70, if_known=True), most(SECTORS_PER_LOAD, 17, if_known=True))
FEW_MISSES = most(MISSES_PER_1000, 10, if_known=True)
FEW_SPILLS = most(LOCAL_LOADS, 0.01, of=INSTRUCTIONS, if_known=True)
ENOUGH_WARPS = least(WARPS_ACTIVE, 25, if_known=True)

FROM_TIMES = (
    Rule(
        Bottleneck.MEMORY_BANDWIDTH, (least(BYTES_PCT, BUSY),), share(BYTES_PCT),
        "the bytes that must be moved fill {0:.1f} % of the time at the device's own rate",
        "from 60 % on the bus is the limit", (*GPUS, *CPUS), is_limit=True,
    ),
    Rule(
        Bottleneck.COMPUTE, (least(FLOPS_PCT, BUSY),), share(FLOPS_PCT),
        "the arithmetic that must be done fills {0:.1f} % of the time at the device's own rate",
        "from 60 % on the arithmetic units are the limit", (*GPUS, *CPUS), is_limit=True,
    ),
    Rule(
        Bottleneck.LAUNCH_OVERHEAD, (least(FIXED_PCT, 30),), share(FIXED_PCT),
        "an empty call would take {0:.1f} % of this one's time",
        "below 30 % another part is larger", (*GPUS, *CPUS), is_limit=True,
    ),
    Rule(
        Bottleneck.LAUNCH_OVERHEAD, (least(LAUNCHES, 2), least(FIXED_PCT, 10)),
        lambda values: (values[LAUNCHES] - 1) * values[FIXED_PCT] / 100,
        "{0:.0f} kernels are started where an empty one takes {1:.1f} % of the time",
        "one start less is worth the effort from 10 % on",
    ),
    Rule(
        Bottleneck.MEMORY_LATENCY,
        (most(BYTES_PCT, FULL), ON_MEMORY_SIDE, NOT_ALL_START, most(WARM_PCT, 90, if_known=True)),
        lambda values: 1 - (values[BYTES_PCT] + values.get(FIXED_PCT, 0)) / 100,
        "the bytes that must be moved fill only {0:.1f} % of the time: the bus waits for requests",
        "below 90 % the bus has room; where a call on cached data takes 90 % as long, loads are not the reason",
        unless=DRAM_BUSY,
    ),
    Rule(
        Bottleneck.INSTRUCTION_OVERHEAD,
        (least(WARM_PCT, 90), most(BYTES_PCT, BUSY), ON_MEMORY_SIDE, NOT_ALL_START),
        lambda values: 1 - (values[BYTES_PCT] + values.get(FIXED_PCT, 0)) / 100,
        "a call on cached data takes {0:.1f} % as long: it is not the loads that take the time",
        "10 % is more than the clock's noise; told only where the case fits half of the cache", unless=ISSUE_BUSY,
    ),
    Rule(
        Bottleneck.INSTRUCTION_OVERHEAD, (most(BYTES_PCT, FULL), ON_MEMORY_SIDE, FEW_MISSES), lack(BYTES_PCT),
        "the bytes that must be moved fill only {0:.1f} % of the time: the cores do not keep up with their streams",
        "prefetchers hide the latency of streams, so what is missing at 90 % is instructions", CPUS,
    ),
    Rule(
        Bottleneck.INSTRUCTION_OVERHEAD, (most(FLOPS_PCT, BUSY), most(CACHE_PCT, 100), NOT_ALL_START),
        lambda values: 1 - (values[FLOPS_PCT] + values.get(FIXED_PCT, 0)) / 100,
        "the arithmetic fills only {0:.1f} % of the time and the data fill {1:.1f} % of the cache",
        "what fits the last-level cache does not wait for memory; below 60 % the arithmetic is not the limit either",
        CPUS, unless=MEMORY_FLOOR,
    ),
    Rule(
        Bottleneck.CACHE_MISSES, (most(FLOPS_PCT, FULL), ON_ARITHMETIC_SIDE), lack(FLOPS_PCT),
        "the arithmetic fills only {0:.1f} % of the time at the device's own rate: operands come late",
        "a well blocked product reaches 90 % of the library's rate", CPUS,
    ),
    Rule(
        Bottleneck.INSTRUCTION_OVERHEAD, (most(FLOPS_PCT, FULL), ON_ARITHMETIC_SIDE), lack(FLOPS_PCT, 0.9),
        "the arithmetic fills only {0:.1f} % of the time at the device's own rate: other instructions take the rest",
        "a well tuned product reaches 90 % of the library's rate; on a CPU second to late operands", (*GPUS, *CPUS),
        unless=MATRIX_PCT,
    ),
    Rule(
        Bottleneck.TENSOR_CORE_IDLE, (most(MATRIX_PCT, FULL), ON_ARITHMETIC_SIDE), lack(MATRIX_PCT),
        "the products fill only {0:.1f} % of the time at the rate of the matrix units",
        "the rate is the library's own: below 90 % of it the units wait for something else", unless=TENSOR_BUSY,
    ),
)  # fmt: skip

FROM_BUILDS = (
    Rule(
        Bottleneck.OCCUPANCY, (most(WARPS_PCT, 25), NOT_ON_ARITHMETIC_SIDE), lack(WARPS_PCT, 0.5),
        "only {0:.1f} % of the warps a multiprocessor can hold fit on it",
        "with 16 warps of 64 each scheduler has four to choose from; matrix kernels do with fewer. Half weight: "
        "that they fit does not say that they wait", unless=WARPS_ACTIVE,
    ),
    Rule(
        Bottleneck.TAIL_EFFECT, (least(IDLE_PCT, 15),), share(IDLE_PCT),
        "the grid leaves {0:.1f} % of the device idle, in its last wave or throughout",
        "from six waves on the last one costs less than 15 %",
    ),
    Rule(
        Bottleneck.SPILLS, (least(SPILL_BYTES, 16),), lambda values: min(0.9, 0.2 + values[SPILL_BYTES] / 512),
        "the compiler moves {0:.0f} bytes per thread to local memory and back",
        "four registers; fewer are mostly spilled outside of loops. The weight grows with the bytes: how often "
        "they move is not known", unless=LOCAL_LOADS,
    ),
    Rule(
        Bottleneck.TENSOR_CORE_IDLE, (most(MATRIX_INSTRUCTIONS, 0), ON_ARITHMETIC_SIDE, most(MATRIX_PCT, 100)),
        lambda values: 0.95,  # noqa: ARG005 - what is not there has no size
        "the kernel has {0:.0f} matrix instructions although its type has matrix units",
        "any would do; without one the plain units are ten times slower",
    ),
    Rule(
        Bottleneck.TENSOR_CORE_IDLE, (least(SERIALIZED, 1),), lambda values: 0.5,  # noqa: ARG005
        "the compiler serialised the matrix instructions ({0:.0f} warnings)",
        "one is enough: the units then wait after every product, which costs about half of the speed",
    ),
    Rule(
        Bottleneck.INSTRUCTION_OVERHEAD, (most(WIDE_LOADS_PCT, 0), NOT_ON_ARITHMETIC_SIDE),
        lambda values: 0.3,  # noqa: ARG005
        "{0:.0f} % of the loads from global memory are 16 bytes wide",
        "none: four times the instructions for the same bytes. Weight 0.3: they may be few", unless=ISSUE_BUSY,
    ),
    Rule(
        Bottleneck.THREAD_IMBALANCE, (most(PARALLEL_REGIONS, 0), least(CPU_THREADS, 2)),
        lambda values: 1 - 1 / values[CPU_THREADS],
        "the source has {0:.0f} parallel regions and {1:.0f} threads could work",
        "one region is enough to use every core", CPUS, unless=THREADS_BUSY,
    ),
)  # fmt: skip

FROM_COUNTERS = (
    Rule(
        Bottleneck.MEMORY_BANDWIDTH, (least(DRAM_BUSY, BUSY),),
        lambda values: values[DRAM_BUSY] / 100 * _useful(values),
        "the memory bus is busy for {0:.1f} % of the time",
        "from 60 % on it is the limit; weighted by the share of its bytes that had to be moved", is_limit=True,
    ),
    Rule(
        Bottleneck.CACHE_MISSES, (least(DRAM_READ, 1.25, of=BYTES_READ), *WHOLE_SECTORS, FEW_SPILLS),
        lambda values: 1 - values[BYTES_READ] / max(1.0, values[DRAM_READ]),
        "{0:.4g} bytes are read from memory, more than the case has",
        "a quarter more than once is more than tails and tables make; half used sectors and spills are no misses",
    ),
    Rule(
        Bottleneck.MEMORY_LATENCY,
        (least(WAITS_FOR_LOADS, STALLED), most(DRAM_BUSY, BUSY), *WHOLE_SECTORS, FEW_SPILLS, ENOUGH_WARPS),
        share(WAITS_FOR_LOADS),
        "warps wait for loads {0:.1f} % of their time while the bus is busy for {1:.1f} %",
        "above 30 % one wait dominates; below 60 % the bus has room. Only where no counter names the cause",
    ),
    Rule(
        Bottleneck.COMPUTE,
        (least(SM_BUSY, BUSY), most(DRAM_BUSY, BUSY), least(FLOPS_PCT, 20, if_known=True)), share(SM_BUSY),
        "the multiprocessors are busy for {0:.1f} % of the time, the bus for {1:.1f} %",
        "from 60 % on they are the limit; below a fifth of the arithmetic rate they are busy with something else",
        is_limit=True,
    ),
    Rule(
        Bottleneck.TENSOR_CORE_IDLE, (most(TENSOR_BUSY, BUSY), ON_ARITHMETIC_SIDE, most(MATRIX_PCT, 100)),
        lack(TENSOR_BUSY), "the matrix units work for {0:.1f} % of the time", "below 60 % they wait",
    ),
    Rule(
        Bottleneck.OCCUPANCY, (most(WARPS_ACTIVE, 25), least(WAITS_FOR_LOADS, STALLED)),
        lambda values: (1 - values[WARPS_ACTIVE] / 100) * values[WAITS_FOR_LOADS] / 100,
        "{0:.1f} % of the warps a multiprocessor can hold are there, and they wait for loads {1:.1f} % of their time",
        "few warps matter only while they wait: four a scheduler, and one wait that dominates",
    ),
    Rule(
        Bottleneck.BANK_CONFLICTS,
        (
            least(CONFLICTS, 0.1, of=SHARED_WAVEFRONTS), least(SHARED_WAVEFRONTS, 1),
            least(WAITS_FOR_SHARED, 5, if_known=True),
        ),
        lambda values: values[CONFLICTS] / values[SHARED_WAVEFRONTS],
        "{0:.4g} of {1:.4g} passes over shared memory are repeats",
        "one in ten; the counter also counts a few that no layout avoids. Only where warps wait for shared memory",
    ),
    Rule(
        Bottleneck.UNCOALESCED_ACCESS, (most(LOADED_USED, 70),), lack(LOADED_USED),
        "{0:.1f} % of the bytes in the loaded sectors are used",
        "rows that begin anywhere lose some; above 70 % that is all it is",
    ),
    Rule(
        Bottleneck.UNCOALESCED_ACCESS, (most(STORED_USED, 70),), lack(STORED_USED),
        "{0:.1f} % of the bytes in the stored sectors are used", "as for loads",
    ),
    Rule(
        Bottleneck.UNCOALESCED_ACCESS, (least(SECTORS_PER_LOAD, 17),),
        lambda values: 1 - 16 / values[SECTORS_PER_LOAD], "a load of a warp touches {0:.1f} sectors",
        "16 are what loads of 16 bytes need; more is never dense", unless=LOADED_USED,
    ),
    Rule(
        Bottleneck.SPILLS, (least(LOCAL_LOADS, 0.01, of=INSTRUCTIONS), least(INSTRUCTIONS, 1)),
        lambda values: min(0.9, 0.1 + 5 * values[LOCAL_LOADS] / values[INSTRUCTIONS]),
        "{0:.4g} of {1:.4g} instructions load from local memory",
        "one in a hundred: inside a loop, and each costs as much as several others",
    ),
    Rule(
        Bottleneck.SPECIAL_FUNCTIONS, (least(XU_BUSY, BUSY),), share(XU_BUSY),
        "the units for exponentials and roots are busy for {0:.1f} % of the time", "from 60 % on they are the limit",
    ),
    Rule(
        Bottleneck.SYNCHRONISATION, (least(WAITS_AT_BARRIERS, STALLED),), share(WAITS_AT_BARRIERS),
        "warps wait at barriers {0:.1f} % of their time", "above 30 % one wait dominates",
    ),
    Rule(
        Bottleneck.INSTRUCTION_OVERHEAD,
        (least(ISSUE_BUSY, BUSY), most(FLOPS_PCT, 20, if_known=True), FEW_SPILLS),
        share(ISSUE_BUSY), "an instruction is issued in {0:.1f} % of the cycles, few of them for the arithmetic",
        "from 60 % on the schedulers are the limit; above a fifth of the arithmetic rate that is what they are for",
    ),
    Rule(
        Bottleneck.THREAD_IMBALANCE, (most(LANES_ACTIVE, 24),), lambda values: 1 - values[LANES_ACTIVE] / 32,
        "{0:.1f} of 32 lanes take part in an instruction", "a quarter of them idle is more than the ends of rows make",
    ),
    Rule(
        Bottleneck.TAIL_EFFECT, (most(WAVES, 6),),
        lambda values: 1 - values[WAVES] / max(1, math.ceil(values[WAVES])),
        "the blocks come in {0:.2f} waves", "from six waves on the last one costs less than 15 %", unless=IDLE_PCT,
    ),
)  # fmt: skip

RULES = (*FROM_TIMES, *FROM_BUILDS, *FROM_COUNTERS)

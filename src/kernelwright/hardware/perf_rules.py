"""The rules on counters of a CPU (`hardware/perf`): per call, of all its threads together."""

from kernelwright.core.technique import Bottleneck
from kernelwright.hardware.bottleneck_rules import (
    BUSY,
    BYTES_PCT,
    BYTES_READ,
    BYTES_WRITTEN,
    CPU_THREADS,
    CPUS,
    FLOPS_PCT,
    TIME,
    Rule,
    Values,
    least,
    most,
    share,
)
from kernelwright.hardware.perf import (
    BRANCH_MISSES,
    CONTEXT_SWITCHES,
    CYCLES,
    FAULTS_PCT,
    INSTRUCTIONS,
    IPC,
    MISSED_BYTES,
    MISSES_PER_1000,
    PAGE_FAULTS,
    THREADS_BUSY,
)

SLOW, FAST = 1.0, 2.0
"""Instructions per cycle: cores of today finish four to six where nothing holds them up."""
WAKING_US = 5.0
"""Least that waking a sleeping thread costs."""
REFILL_CYCLES = 15
"""Cycles until instructions come again after a branch went the other way."""
BUS_HAS_ROOM = most(BYTES_PCT, BUSY, if_known=True)


def _waking(values: Values) -> float:
    """Return the share of the time in which threads are woken, as far as the number of switches tells."""
    return WAKING_US * values[CONTEXT_SWITCHES] / 2 / values[TIME] if values.get(TIME) else 0.0


def _beyond_need(values: Values) -> float:
    """Return the share of the bytes from beyond the caches that would not have to come from there."""
    return 1 - (values[BYTES_READ] + values[BYTES_WRITTEN]) / max(1.0, values[MISSED_BYTES])


FROM_PERF = (
    Rule(
        Bottleneck.MEMORY_LATENCY, (least(FAULTS_PCT, 5), least(PAGE_FAULTS, 1)), share(FAULTS_PCT),
        "touching {1:.0f} fresh pages in each call takes {0:.1f} % of the processor time: memory is taken anew every "
        "time",
        "a kernel that keeps or avoids its scratch faults no more once it is warm; what a page costs is measured",
        CPUS,
    ),
    Rule(
        Bottleneck.THREAD_IMBALANCE, (most(THREADS_BUSY, 0.6, of=CPU_THREADS), least(CPU_THREADS, 2)),
        lambda values: 1 - values[THREADS_BUSY] / values[CPU_THREADS],
        "{0:.2f} threads are busy on average where {1:.0f} could be",
        "two fifths idle is more than starting and ending together costs; who waits for a core counts as busy", CPUS,
    ),
    Rule(
        Bottleneck.MEMORY_LATENCY, (most(IPC, SLOW), least(MISSES_PER_1000, 10), BUS_HAS_ROOM),
        lambda values: 1 - values[IPC] / FAST,
        "{0:.2f} instructions are finished per cycle and {1:.1f} of 1000 miss every cache: the cores wait for loads",
        "one per cycle is a quarter of what cores can; from ten misses in 1000 on they are the reason. Only where the "
        "bus has room", CPUS,
    ),
    Rule(
        Bottleneck.INSTRUCTION_OVERHEAD,
        (
            least(IPC, FAST), most(MISSES_PER_1000, 10, if_known=True), BUS_HAS_ROOM,
            most(FLOPS_PCT, BUSY, if_known=True),
        ),
        lambda values: 1 - max(values.get(BYTES_PCT, 0.0), values.get(FLOPS_PCT, 0.0)) / 100,
        "the cores finish {0:.2f} instructions per cycle, yet neither bus nor arithmetic is at its limit",
        "above two per cycle the cores do not wait: there are too many instructions for the work", CPUS,
    ),
    Rule(
        Bottleneck.INSTRUCTION_OVERHEAD, (least(BRANCH_MISSES, 0.005, of=INSTRUCTIONS), least(CYCLES, 1)),
        lambda values: REFILL_CYCLES * values[BRANCH_MISSES] / values[CYCLES],
        "{0:.4g} branches a call go the other way than foretold, in {1:.4g} cycles",
        "five in 1000 instructions; each costs about 15 cycles, loops of known length have next to none", CPUS,
    ),
    Rule(
        Bottleneck.CACHE_MISSES,
        (least(MISSED_BYTES, 2.5, of=BYTES_READ), least(MISSED_BYTES, 2.5, of=BYTES_WRITTEN)), _beyond_need,
        "{0:.4g} bytes a call come from beyond the caches, more than the case has",
        "a store reads its line too, so once each is at most twice the larger side", CPUS,
    ),
    Rule(
        Bottleneck.SYNCHRONISATION, (least(CONTEXT_SWITCHES, 2, of=CPU_THREADS), least(CPU_THREADS, 2)), _waking,
        "threads fall asleep and are woken: {0:.1f} changes a call on {1:.0f} threads",
        "one team that starts and ends once makes no more than two per thread; half of them wake somebody, "
        "5 us each at least", CPUS,
    ),
)  # fmt: skip

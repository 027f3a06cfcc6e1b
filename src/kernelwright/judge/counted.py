"""Counters of a CPU candidate, over the calls a timing makes and in the state it makes them in.

1. A runner is born, and its counters are opened before it is told what to load: every thread of it is counted.
2. Every call is made once to warm up. Then batches go over fresh inputs and blank outputs, as in a heat.
3. Counts are read here, before and after a batch, while the runner stands still. What a batch of no calls takes is
   taken off. Nothing is decided on them: they are for the diagnosis.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from pydantic import BaseModel

from kernelwright.core.case import Case
from kernelwright.core.counters import CounterProfile, KernelCounters, NoCounters, middle
from kernelwright.core.messages.runner import Job
from kernelwright.hardware import perf
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import Lost, Service
from kernelwright.judge.execution import LOAD_SECONDS
from kernelwright.judge.heat import Heat, TimingFailed, arm_of, calls_for
from kernelwright.judge.runners import ForkedRunner
from kernelwright.judge.stages import CALL_SECONDS, Bench

BATCHES = 6
WARM_UPS = 2
"""Two, because what a kernel sets up on its second call is not steady either."""
WALL = "wall"
TOOL, ACCOUNTS = "perf_event_open", "/proc"
WHOLE = "call"
"""Name of the one row: a CPU's call is not taken apart."""


class CountedRunner(ForkedRunner):
    """A runner whose counters were opened between its birth and its job."""

    def __init__(self, nursery: Service, artefact: Path, backend: str, arena: Arena, home: Path) -> None:
        self.watch: perf.Watch | None = None
        super().__init__(nursery, artefact, backend, arena, home)

    def _send(self, message: BaseModel) -> None:
        if isinstance(message, Job):
            self.watch = perf.Watch(self.pid)
        try:
            super()._send(message)
        except Lost:
            if self.watch is not None:
                self.watch.close()
            raise

    def __exit__(self, *details: object) -> None:
        super().__exit__(*details)
        if self.watch is not None:
            self.watch.close()

    def counted(self, calls: int) -> dict[str, float]:
        """Return what a batch of the first calls took, its nanoseconds on the judge's clock among it."""
        assert self.watch is not None, "opened with the job"
        before = self.watch.read()
        seconds = self.run(0, calls, CALL_SECONDS)
        found = self.watch.read().since(before)
        self.collect(CALL_SECONDS)
        return found | {WALL: 1e9 * seconds}


def count(bench: Bench, case: Case) -> CounterProfile:
    """Return the counters of an accepted candidate on a case, alone on the device; a failure of its is a reason."""
    profile = CounterProfile(case_hash=case.hash, label=case.label)
    with bench.lock:
        started = time.monotonic()
        found = _counted_or_not(bench, case)
        return profile.model_copy(update=found | {"seconds": time.monotonic() - started})


def _counted_or_not(bench: Bench, case: Case) -> dict[str, object]:
    try:
        return _counted(bench, case)
    except TimingFailed as failed:
        reason = failed.failure.reason
    except Lost as lost:
        reason = lost.reason
    return {"lack": NoCounters.FAILED, "reason": f"it failed while counted: {reason}"}


def _counted(bench: Bench, case: Case) -> dict[str, object]:
    """Return the fields of a profile."""
    arm = arm_of(bench, case)
    assert arm.artefact is not None, "on a CPU everything runs in a runner"
    heat = Heat(case, (arm,), calls_for(case, arm), bench.rng)
    (arena,), backend = heat.arenas, bench.candidate.backend
    try:
        with CountedRunner(bench.nursery, arm.artefact, backend, arena, bench.home) as runner:
            runner.ready(LOAD_SECONDS)
            for _ in range(WARM_UPS):
                runner.counted(heat.calls)
            empty, full = [], []
            for _ in range(BATCHES):
                empty.append(runner.counted(0))
                heat.refill()
                arena.poison_outputs()
                full.append(runner.counted(heat.calls))
            assert runner.watch is not None
            refused, tool = runner.watch.refused, TOOL if runner.watch.opened else ACCOUNTS
    finally:
        heat.close()
    a_call = per_call(empty, full, heat.calls)
    wall_ns = a_call.pop(WALL)
    metrics = a_call | perf.derived(a_call, wall_ns, perf.fresh_page_ns())
    lack, reason = perf.lack_of(refused)
    return {
        "tool": tool,
        "calls": BATCHES * heat.calls,
        "kernels": (KernelCounters(name=WHOLE, time_us=wall_ns / 1e3, share=1.0, metrics=metrics),),
        "metrics": metrics,
        "missing": tuple(event.name for event in perf.EVENTS if event.name not in metrics),
        "lack": lack,
        "reason": reason,
    }


def per_call(
    empty: Sequence[Mapping[str, float]], full: Sequence[Mapping[str, float]], calls: int
) -> dict[str, float]:
    """Return the counts of one call: of the median batch, without those of the median batch of no calls."""
    idle, whole = middle(empty), middle(full)
    found = {name: max(0.0, value - idle.get(name, 0.0)) / calls for name, value in whole.items()}
    # A batch that takes no longer than none at all has no time of its own, but it took some.
    found[WALL] = found[WALL] or median(one[WALL] for one in full) / calls
    return found

"""The stage of long lives: thousands of calls of mixed shapes, after which the process holds no more than before.

What it holds is read from outside, where nothing of the candidate's can change it: the system's own account of the
process, and the free memory of the GPU. What is taken once, by the first call or by the first of a shape, is no leak;
what goes on growing while the same calls are repeated is one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from kernelwright.core.case import Case, Distribution
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import Lost, Runner
from kernelwright.judge.stages.bench import (
    CALL_SECONDS,
    SMOKE_ELEMENTS,
    Bench,
    Failure,
    Found,
    Skipped,
    Told,
    input_elements,
)
from kernelwright.judge.stages.checks import check_call, runner_on

SHAPES, REPEATS = 4, 8
"""Cases, and calls of each, that one batch goes through."""
WARM_BATCHES = 4
"""Batches, behind the first one, after which everything that is taken once has been taken."""
WINDOWS, LEAST_GROWING = 6, 5
"""Parts of the time behind the warm batches, and in how many of them a leak must show."""
MOST_CALLS, MOST_SECONDS = 12_000, 5.0
CONTEXT_SECONDS = 3.0
"""How long a process may take to make a context on a GPU: a kernel was refused over 523 MiB of another launcher."""
LEAST_COUNT = 8
"""Threads or descriptors beyond those of the first batch that are no accident."""


@dataclass(frozen=True)
class Gauge:
    """Something a process holds, and from when on its growth is a leak."""

    what: str
    least_bytes: int
    """Growth behind the warm batches, over all."""
    least_per_call: float


GAUGES = (
    Gauge("private memory", 512 << 10, 48),
    Gauge("address space of its own", 512 << 10, 48),
    Gauge("memory of the GPU", 32 << 20, 512),
)
"""Of a process's own memory 16 kB to and fro were seen between batches; a GPU's allocator grows by 2 to 20 MiB."""


@dataclass(frozen=True)
class Held:
    """What a runner holds at one moment."""

    sizes: tuple[int, ...]
    """In bytes, in the order of `GAUGES`."""
    threads: int
    descriptors: int


def held(pid: int, index: int | None) -> Held | None:
    """Return what a process holds, or None where the system does not let this one see it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    try:
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        descriptors = int(fields["FDSize"][0])  # room for so many: a power of two, but it can be seen
    on_gpu = 0
    if index is not None:
        free, total = torch.cuda.mem_get_info(index)
        on_gpu = total - free
    kilobytes = [int(fields[name][0]) if name in fields else 0 for name in ("RssAnon", "VmData")]
    return Held((*(size << 10 for size in kilobytes), on_gpu), int(fields["Threads"][0]), descriptors)


def longevity(bench: Bench) -> Told:
    """Repeat calls of mixed shapes in one process and look from outside at what it holds."""
    if bench.is_interpreted:
        return 0, Skipped("an interpreter stands in for the GPU, and what it holds is not the candidate's")
    cases = mixed_cases(bench)
    order = [index for _ in range(REPEATS) for index in range(len(cases))]
    with bench.arena(cases, order) as arena:
        for number, index in enumerate(order):
            arena.write_inputs(number, bench.op.make_inputs(cases[index], Distribution.SIGNED, bench.seed))
        arena.poison_outputs()
        try:
            with runner_on(bench, arena) as runner:
                if held(runner.pid, arena.index) is None:
                    return 0, Skipped("what a runner holds cannot be seen on this system")
                return live(bench, runner, arena)
        except Lost as lost:
            return len(order), Failure(lost.status, f"after many calls: {lost.reason}", cases[0])


def mixed_cases(bench: Bench) -> list[Case]:
    """Return a small case and others of other sizes and types that the same artefact serves."""
    drawn = [*bench.small_cases(), *(bench.hidden_case(SMOKE_ELEMENTS) for _ in range(SHAPES))]
    bench.rng.shuffle(drawn)
    own = min(bench.problem.cases, key=input_elements)
    first = own if input_elements(own) <= SMOKE_ELEMENTS else drawn[0]
    key = bench.build_key(first)
    others = [case for case in drawn if bench.build_key(case) == key and case.hash != first.hash]
    return [first, *others[: SHAPES - 1]]


def live(bench: Bench, runner: Runner, arena: Arena) -> Found:
    """Run batches until the calls or the seconds are used up, in windows of equal length."""
    batch, done = len(arena.calls), 0
    done += _batch(runner, batch)
    # Every shape has been served: whoever keeps a pool of threads has it now, and limits are still far.
    first, started = _look(runner, arena), time.perf_counter()
    for _ in range(WARM_BATCHES):
        done += _batch(runner, batch)
    taken = (time.perf_counter() - started) / WARM_BATCHES
    batches = min((MOST_CALLS - done) // batch, int(MOST_SECONDS / taken))
    per_window = max(1, batches // WINDOWS)
    calls = WINDOWS * per_window * batch
    # A plan brings no host code: what else the launcher holds is its own affair.
    gauges = GAUGES[-1:] if bench.is_planned else GAUGES
    # The memory of a GPU is everybody's: a context that another process makes meanwhile grows once, a leak again.
    for pause in (0.0,) if arena.index is None else (0.0, CONTEXT_SECONDS):
        time.sleep(pause)
        looks = [_look(runner, arena)]
        for _ in range(WINDOWS):
            for _ in range(per_window):
                done += _batch(runner, batch)
            looks.append(_look(runner, arena))
        counted = None if bench.is_planned else more_of(first, looks[-1])
        reason = counted or grown(looks, calls, gauges) or ""
        if not reason:
            break
    else:
        return done, Failure(Status.LEAK, reason, arena.cases[0])
    arena.poison_outputs()
    done += _batch(runner, batch)
    for number in range(len(arena.cases)):
        if failure := check_call(bench, arena, number, Distribution.SIGNED):
            return done, Failure(failure.status, f"after {done} calls: {failure.reason}", failure.case)
    return done, None


def _batch(runner: Runner, size: int) -> int:
    runner.run(0, size, CALL_SECONDS)
    runner.collect(CALL_SECONDS)
    return size


def _look(runner: Runner, arena: Arena) -> Held:
    found = held(runner.pid, arena.index)
    if found is None:
        raise Lost(Status.CRASHED, "the runner is gone")
    return found


def grown(looks: Sequence[Held], calls: int, gauges: Sequence[Gauge]) -> str | None:
    """Return which memory grew with the calls between the looks, or None."""
    for gauge in gauges:
        sizes = [look.sizes[GAUGES.index(gauge)] for look in looks]
        more = sizes[-1] - sizes[0]
        growing = sum(after > before for before, after in pairwise(sizes))
        is_much = more >= gauge.least_bytes and more >= gauge.least_per_call * calls
        if is_much and growing >= LEAST_GROWING:
            return (
                f"{gauge.what} grew by {more >> 10} KiB over {calls} calls, {more / calls:.0f} bytes a call"
            )
    return None


def more_of(first: Held, last: Held) -> str | None:
    """Return what there is more of than after the first calls of every shape, or None."""
    for what, before, after in (
        ("threads", first.threads, last.threads),
        ("open descriptors", first.descriptors, last.descriptors),
    ):
        if after - before >= LEAST_COUNT:
            return f"{what} grew from {before} to {after} while the same calls were repeated"
    return None

"""Calls on streams of their own, and calls in graphs: what both kinds of GPU runners do with them.

Streams of torch do not wait for the legacy default stream, so calls that were put on them end while it is blocked. All
lanes are held back by one gate until everything is enqueued, so that they really run side by side. Between the calls
memory is taken, filled and given back, on the lanes themselves and on a stream of its own: what is used after it was
freed is overwritten.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from kernelwright.worker.launcher import checked

WARM_UP = 2
PROBE_CYCLES = 4_000_000
GATE_SHARE = 0.4
"""How long the lanes are held back, in the time the legacy default stream is blocked: long enough for a busy host to
enqueue everything, or the lanes run one after the other."""
HELD_CYCLES = 200_000
"""About a tenth of a millisecond."""
CHURNED_BYTES = (1 << 9, 1 << 14, 1 << 18, 1 << 21)

Closure = Callable[[], Any]


def overlapped(warm: Sequence[Closure], lanes: Sequence[Sequence[Closure]], blocked_s: float) -> bool:
    """Run lanes of calls at once, one stream each; tell whether all ended before the legacy default stream was free."""
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in lanes]
    gate, churn = torch.cuda.Stream(), torch.cuda.Stream()
    for stream, closure in zip(streams, warm, strict=True):
        _on(stream, closure)
        _on(stream, _churn)
    _on(churn, _churn)
    cycles = _cycles_per_second() * blocked_s
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.default_stream()):
        torch.cuda._sleep(int(cycles))
        freed = torch.cuda.Event()
        freed.record()
    with torch.cuda.stream(gate):
        torch.cuda._sleep(int(cycles * GATE_SHARE))
    for stream in streams:
        stream.wait_stream(gate)
    for turn in range(max(len(lane) for lane in lanes)):
        for stream, lane in zip(streams, lanes, strict=True):
            if turn < len(lane):
                _on(stream, lane[turn])
                _on(stream, _churn)
        _on(churn, _churn)
    for stream in streams:
        stream.synchronize()
    is_in_time = not freed.query()
    torch.cuda.synchronize()
    return is_in_time


def _on(stream: torch.cuda.Stream, closure: Closure) -> None:
    with torch.cuda.stream(stream):
        closure()


def _churn() -> None:
    """Take memory of several sizes, make it NaN in every float type and give it back."""
    for nbytes in CHURNED_BYTES:
        torch.empty(nbytes, dtype=torch.uint8, device="cuda").fill_(0xFF)


def _cycles_per_second() -> float:
    """Return how many cycles of a sleeping kernel make a second; the first sleep only wakes the clocks."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(PROBE_CYCLES)
    start.record()
    torch.cuda._sleep(PROBE_CYCLES)
    end.record()
    end.synchronize()
    return PROBE_CYCLES / (start.elapsed_time(end) / 1e3)


class Captured:
    """One call in a graph, and what it returned there: replays write it anew."""

    def __init__(self, closure: Closure) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        for _ in range(WARM_UP):
            _on(side, closure)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.closure = closure  # what the graph refers to must outlive it
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.value = closure()

    def replay(self, *, is_aside: bool) -> None:
        """Replay it and wait, on the usual stream or on another one."""
        with torch.cuda.stream(torch.cuda.Stream() if is_aside else torch.cuda.current_stream()):
            self.graph.replay()
        torch.cuda.synchronize()


class CallGraph:
    """Calls in one graph, on the device before it is replayed: the first replay takes no longer than the second."""

    def __init__(self, closures: Sequence[Closure]) -> None:
        from cuda.bindings import driver

        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        # What a baseline allocated in the graph before is of no use to another one until it was given back.
        torch.cuda.empty_cache()
        with torch.cuda.stream(self.stream):
            # Not torch.cuda.graph: it collects garbage first, and takes longer for it than all calls together.
            self.graph.capture_begin()
            try:
                self.kept = [closure() for closure in closures]
            finally:
                self.graph.capture_end()
            self.graph.instantiate()
        checked(driver.cuGraphUpload(self.graph.raw_cuda_graph_exec(), self.stream.cuda_stream))

    def seconds(self, replays: int) -> list[float]:
        """Replay it, again and again without a pause, and return how long the device took for each."""
        from cuda.bindings import driver

        marks = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            # Until the device is awake in this context, and everything is enqueued.
            torch.cuda._sleep(HELD_CYCLES)
            marks[0].record()
            for mark in marks[1:]:
                self.graph.replay()
                mark.record()
        torch.cuda.synchronize()
        # Lines that were marked to be kept would be missing to whoever is timed next.
        checked(driver.cuCtxResetPersistingL2Cache())
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]

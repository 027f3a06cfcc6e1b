"""Where the model's time goes: known ops with their cases, counts and shares."""

import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch.fx import Interpreter, Node

from kernelwright.core.messages.model import FoundRegion, GraphBreak, ModelTraced
from kernelwright.model.capture import Capture, Captured, capture
from kernelwright.model.extract import Site, extract, fresh_arguments
from kernelwright.model.graph import own_nodes
from kernelwright.model.load import Loaded

WARM_UP, ROUNDS = 3, 10
OFFERED = ("rmsnorm",)
"""Ops a run is offered. The others are extracted and can be put back, but searching them all takes a ranking first."""


class _Stopwatch(Interpreter):
    """Runs a graph node by node and adds up the time each takes."""

    def __init__(self, captured: Captured, synchronise: bool) -> None:
        super().__init__(captured.graph)
        self.seconds: dict[Node, float] = defaultdict(float)
        self.synchronise = synchronise

    def run_node(self, n: Node) -> Any:
        started = time.perf_counter()
        value = super().run_node(n)
        if self.synchronise:
            torch.cuda.synchronize()
        if n.op == "call_function":
            self.seconds[n] += time.perf_counter() - started
        return value


def node_shares(found: Capture) -> list[dict[Node, float]]:
    """Return, per graph, each node's share of the time all graphs take when they run node by node."""
    times: list[dict[Node, float]] = []
    for captured in found.graphs:
        on_gpu = any(isinstance(one, torch.Tensor) and one.is_cuda for one in captured.arguments)
        watch = _Stopwatch(captured, on_gpu)
        for number in range((WARM_UP + ROUNDS) if captured.arguments else 0):
            if number == WARM_UP:
                watch.seconds.clear()
            watch.run(*fresh_arguments(captured))
        times.append(watch.seconds)
    total = sum(sum(one.values()) for one in times) or 1.0
    return [{node: seconds / total for node, seconds in one.items()} for one in times]


def share_of(sites: Sequence[Site], shares: list[dict[Node, float]]) -> float:
    """Return the share of the time that sites take."""
    taken = {(site.graph, node) for site in sites for node in own_nodes(site.region)}
    return min(1.0, sum(shares[graph].get(node, 0.0) for graph, node in taken))


def trace(loaded: Loaded) -> ModelTraced:
    """Return the regions of the model that are ops a run is offered."""
    with torch.inference_mode():
        captured = capture(loaded.module, loaded.sample_inputs(0))
        found = extract(captured, with_fusions=False, only=OFFERED)
        times = []
        for number in range(WARM_UP + ROUNDS):
            inputs = loaded.sample_inputs(number)
            started = time.perf_counter()
            loaded.module(*inputs)
            times.append((time.perf_counter() - started) * 1e6)
        shares = node_shares(captured)
    # The same case may be written in several forms; a kernel serves them all.
    cases = {one.case.hash: one.case for one in found if one.op in OFFERED}
    sites = {key: [site for one in found if one.case.hash == key for site in one.sites] for key in cases}
    return ModelTraced(
        regions=tuple(
            FoundRegion(case=case, count=len(sites[key]), share=share_of(sites[key], shares))
            for key, case in cases.items()
        ),
        forward_us=median(times[WARM_UP:]),
        graphs=len(captured.graphs),
        breaks=tuple(GraphBreak(reason=one.reason, where=one.where) for one in captured.breaks),
    )

"""Where the model's time goes: known ops with their cases, counts and shares."""

import time
from statistics import median

import torch
from torch.fx import GraphModule
from torch.profiler import ProfilerActivity, profile

from kernelwright.core.messages import FoundRegion, ModelTraced
from kernelwright.model.graph import Site, counted_cases, sites
from kernelwright.model.load import Loaded

WARM_UP, ROUNDS = 3, 10
PROFILED = {"rmsnorm": "aten::rms_norm"}
"""The profiler's name of each op that can be recognised."""


def capture(loaded: Loaded) -> list[GraphModule]:
    """Return the graphs dynamo captures; more than one means graph breaks."""
    graphs: list[GraphModule] = []

    def keep(graph: GraphModule, _: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch.compile(loaded.module, backend=keep, dynamic=False)(*loaded.sample_inputs(0))
    torch._dynamo.reset()
    return graphs


def _shares(loaded: Loaded) -> dict[str, float]:
    """Return the share of the time that each recognisable op takes, children included."""
    inputs = loaded.sample_inputs(0)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        for _ in range(ROUNDS):
            loaded.module(*inputs)
    rows = trace.key_averages()
    total = sum(row.self_cpu_time_total for row in rows) or 1.0
    times = {row.key: row.cpu_time_total for row in rows}
    return {op: min(1.0, times.get(name, 0.0) / total) for op, name in PROFILED.items()}


def trace(loaded: Loaded) -> ModelTraced:
    """Return the regions of the model that are known ops."""
    with torch.inference_mode():
        graphs = capture(loaded)
        found: list[Site] = [site for graph in graphs for site in sites(graph)]
        times = []
        for number in range(WARM_UP + ROUNDS):
            inputs = loaded.sample_inputs(number)
            started = time.perf_counter()
            loaded.module(*inputs)
            times.append((time.perf_counter() - started) * 1e6)
        shares = _shares(loaded)
    cases = counted_cases(found)
    elements = {case.op: 0 for case, _ in cases}
    for case, count in cases:
        elements[case.op] += count * case.outputs[0].numel
    regions = tuple(
        # One op's time is divided among its cases by the elements they produce.
        FoundRegion(
            case=case,
            count=count,
            share=shares[case.op] * count * case.outputs[0].numel / max(1, elements[case.op]),
        )
        for case, count in cases
    )
    return ModelTraced(regions=regions, forward_us=median(times[WARM_UP:]), graphs=len(graphs))

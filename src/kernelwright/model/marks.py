"""A captured graph with marks: how long each of its operations takes while the model runs as it always does.

Three ways were tried on a graph of 91 operations that takes 0.7 ms: a mark of the profiler around every operation makes
it 4.6 times as slow, fx's interpreter with a clock 3 times, a clock reading behind every operation in the graph's own
generated code 1.02 times. So that is how a CPU is measured, and what a reading costs is taken off. A GPU does its
work later than the code that asks for it: there the profiler tells how long the kernels of a marked operation took, and
what a mark costs the host does not change that.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles
from typing import Any, Literal

import torch
from torch.fx import Graph, GraphModule

from kernelwright.model.capture import Captured
from kernelwright.model.regraph import quick

Key = tuple[int, str]
"""A graph's number and a node's name."""
Form = Literal["plain", "stamped", "annotated"]
"""As captured; with a clock reading behind every operation; marked for the profiler."""
WHOLE = ""
"""Stands for a whole graph in place of a node's name."""
PREFIX = "kernelwright"
CALL = "## Call CompiledFxGraph"
"""How Inductor marks the call of a compiled graph."""
STAMPS = 100


def copied(graph: GraphModule) -> GraphModule:
    """Return a graph of the same nodes by the same names, that can be changed."""
    made = Graph()
    answer = made.graph_copy(graph.graph, {})
    made.output(answer)
    return GraphModule(graph, made)


def stamped(graph: GraphModule) -> GraphModule:
    """Return a graph that reads the clock behind every operation and returns the readings beside its answer.

    Readings are plain local values: one call of a builtin each, less than half of what adding them to a list costs.
    """
    marked = quick(copied(graph))
    readings = []
    for node in list(marked.graph.nodes):
        if node.op == "call_function":
            with marked.graph.inserting_after(node):
                readings.append(marked.graph.call_function(time.perf_counter_ns))
        elif node.op == "output":
            node.args = ((node.args[0], readings),)
    marked.recompile()
    return marked


@dataclass
class Watch:
    """Runs captured graphs in the form asked for, and keeps what the marks of a call recorded."""

    graphs: list[Captured] = field(default_factory=list)
    form: Form = "plain"
    forms: list[dict[Form, Callable[..., Any]]] = field(default_factory=list)
    names: list[list[str]] = field(default_factory=list)
    """Per graph its operations in the order of their stamps."""
    calls: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """Stamped calls since the last `taken`: graph, clock at its start, readings."""

    def finish(self, captured: Captured) -> Callable[..., Any]:
        """Take a graph in, and return what runs it."""
        number = len(self.graphs)
        self.graphs.append(captured)
        plain = quick(copied(captured.graph))
        self.names.append([node.name for node in captured.graph.graph.nodes if node.op == "call_function"])
        self.forms.append({"plain": plain.forward, "stamped": stamped(captured.graph).forward})
        return self._runner(number)

    def aside(self, captured: Captured) -> Callable[..., Any]:
        """Take in a graph that is the framework's own: it is timed as a whole."""
        number = len(self.graphs)
        # Without its arguments nothing is looked for in it.
        self.graphs.append(Captured(captured.graph, captured.ended_by))
        self.names.append([WHOLE])

        def whole(*given: Any) -> tuple[Any, list[int]]:
            return captured.graph(*given), [time.perf_counter_ns()]

        self.forms.append({"plain": captured.graph.forward, "stamped": whole})
        return self._runner(number)

    def _runner(self, number: int) -> Callable[..., Any]:
        forms = self.forms[number]

        def run(*given: Any) -> Any:
            if self.form != "stamped":
                return forms.get(self.form, forms["plain"])(*given)
            started = time.perf_counter_ns()
            answer, readings = forms["stamped"](*given)
            self.calls.append((number, started, readings))
            return answer

        return run

    def annotate(self, labels: Mapping[Key, str]) -> None:
        """Make the form in which a profiler sees a mark around every operation."""
        enter = torch.ops.profiler._record_function_enter_new.default
        leave = torch.ops.profiler._record_function_exit._RecordFunction
        for number, captured in enumerate(self.graphs):
            if self.names[number] == [WHOLE]:
                continue
            graph = quick(copied(captured.graph))
            for node in list(graph.graph.nodes):
                if node.op != "call_function":
                    continue
                label = f"{PREFIX}|{number}|{node.name}|{labels.get((number, node.name), '')}"
                with graph.graph.inserting_before(node):
                    handle = graph.graph.call_function(enter, (label,))
                with graph.graph.inserting_after(node):
                    graph.graph.call_function(leave, (handle,))
            graph.recompile()
            self.forms[number]["annotated"] = graph.forward

    def taken(self) -> tuple[dict[Key, float], Counter[int]]:
        """Return the microseconds of each operation since the last time, stamps included, and each graph's runs."""
        found: dict[Key, float] = defaultdict(float)
        for number, started, readings in self.calls:
            spans = pairwise((started, *readings))
            for name, (before, after) in zip(self.names[number], spans, strict=True):
                found[number, name] += (after - before) / 1e3
        runs = Counter(number for number, _, _ in self.calls)
        self.calls.clear()
        return dict(found), runs


class StampCost:
    """What one stamp costs among small operations: more than among nothing, where all it needs is at hand."""

    def __init__(self) -> None:
        graph = Graph()
        given = graph.placeholder("value")
        for _ in range(STAMPS):
            graph.call_function(torch.add, (given, given))
        graph.output(given)
        plain = GraphModule(torch.nn.Module(), graph)
        self.value, self.runs = torch.ones(64), (plain.forward, stamped(plain).forward)
        self.walls: tuple[list[int], list[int]] = ([], [])

    def look(self) -> None:
        """Measure once more, now: the cost depends on what else the machine does."""
        found: tuple[list[int], list[int]] = ([], [])
        self.runs[0](self.value)  # whoever comes first finds nothing at hand
        for place in (0, 1, 1, 0):
            started = time.perf_counter_ns()
            self.runs[place](self.value)
            found[place].append(time.perf_counter_ns() - started)
        for walls, both in zip(self.walls, found, strict=True):
            walls.append(min(both))

    @property
    def us(self) -> float:
        """Return the cost by the quieter calls: the others were rather disturbed than slow."""
        plain, marked = (quantiles(walls, n=4)[0] for walls in self.walls)
        return max(0.0, (marked - plain) / STAMPS / 1e3)


def device_us(event: Any) -> float:
    """Return how long the kernels worked that were launched inside an event of a profile.

    A mark is drawn on the GPU too, over its kernels and the time between them; it is not counted as one of them.
    """
    marks = (f"{PREFIX}|", CALL)
    own = sum(float(one.duration) for one in event.kernels if not one.name.startswith(marks))
    return own + sum(map(device_us, event.cpu_children))


def marked_times(events: list[Any], on_gpu: bool) -> dict[Key, float]:
    """Return the microseconds of each marked operation of a profile: its kernels' on a GPU, its own on a CPU."""
    from torch.autograd import DeviceType

    found: dict[Key, float] = defaultdict(float)
    for event in events:
        if event.name.startswith(f"{PREFIX}|") and event.device_type == DeviceType.CPU:
            _, number, name, _ = event.name.split("|", 3)
            found[int(number), name] += device_us(event) if on_gpu else float(event.cpu_time_total)
    return dict(found)


def busy_us(events: list[Any]) -> float:
    """Return how long the GPU worked in a profile, kernels that overlap counted once."""
    from torch.autograd import DeviceType

    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == DeviceType.CUDA
        and not getattr(event, "is_user_annotation", False)
        and not event.name.startswith((f"{PREFIX}|", CALL))
    )
    busy, reached = 0.0, 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy

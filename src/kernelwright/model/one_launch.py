"""Spliced graphs as CUDA graphs: what a call launches is recorded once, and is one launch from then on.

Below dynamo, whose guards go on to decide which graph a call runs. The first calls with inputs of some form run as they
are, the next one is recorded, which executes nothing, and replayed. Weights are read where they lie; other inputs are
copied in and answers copied out, so that nobody holds memory a later call writes to. What cannot be replayed runs as it
is, and is counted with the reason.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map_only

from kernelwright.backends._bare_table import ALIGNMENT
from kernelwright.model.capture import Captured, mutated, placeholders
from kernelwright.model.tally import Tally

Launch = Literal["plain", "graph"]
"""How a spliced graph is launched: kernel by kernel, or as one CUDA graph."""
WARM_UP = 2
"""Calls of a thread before one is recorded: handles, work spaces and kernels are loaded with them."""
MOST_RECORDED = 16
"""Recordings one graph keeps, the last used ones: each has memory of its own, for all that lies between two kernels."""
MOST_COUNTED = 256
"""Forms of calls that are counted towards a recording, the last seen ones."""


class NotReplayed(Exception):
    """What was recorded cannot be replayed: what it answers would not be what a call answers."""


@dataclass(frozen=True)
class _Recorded:
    """One CUDA graph, with memory for what is copied in and what it answers. Weights are not held."""

    graph: Any
    inputs: dict[int, torch.Tensor]
    """By place among what is given."""
    answer: Any

    def replay(self, given: Sequence[Any]) -> Any:
        """Return the answer to other inputs of the same form, in memory of its own."""
        with torch.no_grad():
            for place, mine in self.inputs.items():
                mine.copy_(given[place])
        self.graph.replay()
        return tree_map_only(torch.Tensor, torch.clone, self.answer)


class OneLaunch:
    """A graph that is replayed wherever it can be."""

    def __init__(self, run: Callable[..., Any], captured: Captured, tally: Tally) -> None:
        self.run, self.tally = run, tally
        known = {node.name: place for place, node in enumerate(placeholders(captured.graph))}
        self.weights = frozenset(known[name] for name in captured.constants)
        self.hindrance = hindrance(captured, self.weights)
        self.recorded: OrderedDict[tuple[Any, ...], _Recorded | str] = OrderedDict()
        """By the form of a call: what was recorded, or why it cannot be."""
        self.warm = threading.local()
        """Of each thread, by form: how many calls ran. Handles of libraries are made per thread."""

    def __call__(self, *given: Any) -> Any:
        """Run the graph."""
        reason = self.hindrance or self._kept_from(given)
        if reason:
            return self._as_it_is(given, reason)
        device = next(one.device for one in given if isinstance(one, torch.Tensor))
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():  # whoever records us replays us
                return self.run(*given)
            # One at a time: threads of one stream would exchange each other's inputs and answers.
            with _turn():
                return self._on_stream(given)

    def forget(self) -> None:
        """Let go of everything recorded, and of its memory."""
        with _turn():
            self._keep(0)

    def _on_stream(self, given: Sequence[Any]) -> Any:
        form = (torch.cuda.current_stream().cuda_stream, *self._form(given))
        if form not in self.recorded:
            if self._is_cold(form):
                return self.run(*given)
            try:
                self.recorded[form] = recording(self.run, given, self.weights)
            except (NotReplayed, RuntimeError) as error:
                self.recorded[form] = f"it cannot be recorded: {' '.join(str(error).split())[:200]}"
            self._keep(MOST_RECORDED)
        self.recorded.move_to_end(form)
        found = self.recorded[form]
        if isinstance(found, str):
            return self._as_it_is(given, found)
        self.tally.replays += 1
        return found.replay(given)

    def _keep(self, most: int) -> None:
        """Let go of all but the last used recordings, once none of them is at work any more."""
        if len(self.recorded) > most and torch.cuda.is_available():
            torch.cuda.synchronize()
        while len(self.recorded) > most:
            self.recorded.popitem(last=False)

    def _is_cold(self, form: tuple[Any, ...]) -> bool:
        counts = vars(self.warm).setdefault("counts", OrderedDict())
        count = counts.pop(form, 0)
        counts[form] = count + 1
        if len(counts) > MOST_COUNTED:
            counts.popitem(last=False)
        return count < WARM_UP

    def _as_it_is(self, given: Sequence[Any], reason: str) -> Any:
        self.tally.launched_one_by_one[reason] += 1
        return self.run(*given)

    def _kept_from(self, given: Sequence[Any]) -> str:
        """Return why these inputs cannot be replayed, if they cannot."""
        devices = {one.device for one in given if isinstance(one, torch.Tensor)}
        if {one.type for one in devices} != {"cuda"}:
            return "a tensor is not on a GPU" if devices else "it is given no tensor"
        if len(devices) > 1:
            return "tensors of several GPUs"
        moved = (one for place, one in enumerate(given) if place not in self.weights)
        if not all(is_apart(one) for one in moved if isinstance(one, torch.Tensor)):
            return "elements of an input share memory"
        return ""

    def _form(self, given: Sequence[Any]) -> Iterator[Any]:
        """Yield all a recording rests on but the values of inputs: where weights lie, and how inputs are laid out."""
        for place, one in enumerate(given):
            if not isinstance(one, torch.Tensor):
                yield one
            elif place in self.weights:
                yield one.data_ptr()
            else:
                yield one.shape, one.stride(), one.dtype, one.data_ptr() % ALIGNMENT


@cache
def _turn() -> threading.Lock:
    """Return the lock of all recordings and replays of this process: a device records one at a time."""
    return threading.Lock()


def hindrance(captured: Captured, weights: frozenset[int]) -> str:
    """Return why a graph can never be replayed, if it cannot."""
    graph, places = captured.graph, placeholders(captured.graph)
    moved = {node for place, node in enumerate(places) if place not in weights}
    if places and not captured.arguments:
        return "its inputs are not those of the model"
    if mutated(graph) & moved:
        return "it writes to an input"
    if any(
        node.target is torch.ops.aten.as_strided.default and node.args[0] in moved for node in _calls(graph)
    ):
        return "it reads an input's memory at places of its own"  # in a copy other values are there
    values = (value for node in graph.graph.nodes for value in tree_leaves(node.meta.get("val")))
    if any(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in values):
        return "it computes on the host"
    return ""


def _calls(graph: GraphModule) -> list[Node]:
    return [node for node in graph.graph.nodes if node.op == "call_function"]


def recording(run: Callable[..., Any], given: Sequence[Any], weights: frozenset[int]) -> _Recorded:
    """Record a call, executing nothing of it; raise if it cannot be replayed."""
    # Memory that is written to under whatever mode later calls are made in.
    with torch.inference_mode(False), torch.no_grad():
        moved = {
            place: copied(one)
            for place, one in enumerate(given)
            if isinstance(one, torch.Tensor) and place not in weights
        }
        graph, own = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        # Around it a stream of this device, restored whatever happens: torch's own may be another device's.
        with torch.cuda.stream(own), torch.cuda.graph(graph, stream=own, capture_error_mode="thread_local"):
            answer = run(*(moved.get(place, one) for place, one in enumerate(given)))
    if problem := indistinct(answer):
        raise NotReplayed(problem)
    return _Recorded(graph, moved, answer)


def indistinct(answer: Any) -> str:
    """Return why copies of an answer would not be what it is, if they would not."""
    told = [one for one in tree_leaves(answer) if isinstance(one, torch.Tensor)]
    homes = [one.untyped_storage().data_ptr() for one in told if one.numel()]
    if len(set(homes)) < len(homes):
        return "answers share memory"
    dense = (torch._debug_has_internal_overlap(one) == 0 for one in told)
    return "" if all(dense) else "an answer is not laid out densely"


def is_apart(one: torch.Tensor) -> bool:
    """Tell whether every element of a tensor has memory of its own."""
    extent = 1
    for step, size in sorted((step, size) for size, step in zip(one.shape, one.stride(), strict=True)):
        if size > 1 and step < extent:
            return False
        extent += (size - 1) * step
    return True


def copied(one: torch.Tensor) -> torch.Tensor:
    """Return a copy that is laid out as its original, and as far from an aligned address: kernels rest on both."""
    extent = 1 + sum((size - 1) * step for size, step in zip(one.shape, one.stride(), strict=True))
    room = one.data_ptr() % ALIGNMENT // one.element_size()
    made = torch.empty(room + max(extent, 0), dtype=one.dtype, device=one.device)
    return made.as_strided(one.shape, one.stride(), room).copy_(one)

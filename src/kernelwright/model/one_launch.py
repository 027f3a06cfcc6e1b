"""Spliced graphs as CUDA graphs: what a call launches is recorded once, and is one launch from then on.

Below dynamo, whose guards go on to decide which graph a call runs. The first calls with inputs of some layout run as
they are, the next one is recorded, which executes nothing, and replayed. Weights are read where they lie; other inputs
are copied in and answers copied out, so that nobody holds memory a later call writes to. What cannot be replayed runs
as it is, and is counted with the reason.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map_only

from kernelwright.model.capture import Captured, mutated, placeholders
from kernelwright.model.tally import Tally

Launch = Literal["plain", "graph"]
"""How a spliced graph is launched: kernel by kernel, or as one CUDA graph."""
WARM_UP = 2
"""Calls before one is recorded: handles, work spaces and kernels are loaded with them."""
MOST_RECORDED = 16
"""Layouts of inputs one graph is recorded for; each keeps memory of its own."""
BYTES = 16
"""A copy starts where its original does, modulo as many: what a kernel was certified with may rest on it."""


class _Recorded:
    """One CUDA graph with its inputs and answers."""

    def __init__(self, run: Callable[..., Any], given: Sequence[Any], weights: frozenset[int]) -> None:
        with torch.inference_mode(False):  # written to under whatever mode later calls are made in
            self.inputs = [one if place in weights else _copy(one) for place, one in enumerate(given)]
        self.moved = [
            place for place, one in enumerate(given) if place not in weights and isinstance(one, torch.Tensor)
        ]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.answer = run(*self.inputs)

    def replay(self, given: Sequence[Any]) -> Any:
        """Return the answer to other inputs of the same layout, in memory of its own."""
        with torch.no_grad():
            for place in self.moved:
                self.inputs[place].copy_(given[place])
        self.graph.replay()
        return tree_map_only(torch.Tensor, torch.clone, self.answer)


class OneLaunch:
    """A graph that is replayed wherever it can be."""

    def __init__(self, run: Callable[..., Any], captured: Captured, tally: Tally) -> None:
        self.run, self.tally = run, tally
        places = placeholders(captured.graph)
        known = {node.name: place for place, node in enumerate(places)}
        self.weights = frozenset(known[name] for name in captured.constants)
        written = mutated(captured.graph) - {places[place] for place in self.weights}
        self.hindrance = "it writes to an input" if written else ""
        if places and not captured.arguments:
            self.hindrance = "inputs share memory"
        self.calls: dict[tuple[Any, ...], int | _Recorded] = {}
        """By layout: how often it ran, or what was recorded of it."""
        self.recording = threading.Lock()

    def __call__(self, *given: Any) -> Any:
        """Run the graph."""
        reason = self.hindrance or self._kept_from(given)
        if reason:
            return self._as_it_is(given, reason)
        device = next(one.device for one in given if isinstance(one, torch.Tensor))
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():  # whoever records us replays us
                return self.run(*given)
            return self._on_stream(given)

    def _on_stream(self, given: Sequence[Any]) -> Any:
        key = (torch.cuda.current_stream().cuda_stream, *self._layout(given))
        found = self.calls.get(key, 0)
        if isinstance(found, int):
            if found < WARM_UP:
                self.calls[key] = found + 1
                return self.run(*given)
            if sum(isinstance(one, _Recorded) for one in self.calls.values()) >= MOST_RECORDED:
                return self._as_it_is(given, f"more than {MOST_RECORDED} layouts of inputs")
            try:
                with self.recording:
                    found = self.calls[key] = _Recorded(self.run, given, self.weights)
            except RuntimeError as error:  # nothing was executed: it is called as it is from now on
                self.hindrance = f"it cannot be recorded: {' '.join(str(error).split())[:200]}"
                return self._as_it_is(given, self.hindrance)
        self.tally.replays += 1
        return found.replay(given)

    def _as_it_is(self, given: Sequence[Any], reason: str) -> Any:
        self.tally.launched_one_by_one[reason] += 1
        return self.run(*given)

    def _kept_from(self, given: Sequence[Any]) -> str:
        """Return why these inputs cannot be replayed, if they cannot."""
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        devices = {one.device for one in tensors}
        if {one.type for one in devices} != {"cuda"}:
            return "a tensor is not on the GPU"
        if len(devices) > 1:
            return "tensors of several GPUs"
        moved = (one for place, one in enumerate(given) if place not in self.weights)
        if any(isinstance(one, torch.Tensor) and torch._debug_has_internal_overlap(one) for one in moved):
            return "elements of an input share memory"
        return ""

    def _layout(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """Return all a recording depends on but the values of inputs."""
        return tuple(
            one
            if not isinstance(one, torch.Tensor)
            else one.data_ptr()
            if place in self.weights
            else (one.shape, one.stride(), one.dtype, one.data_ptr() % BYTES)
            for place, one in enumerate(given)
        )


def _copy(one: Any) -> Any:
    """Return memory for an input, laid out as it is."""
    if not isinstance(one, torch.Tensor):
        return one
    extent = 1 + sum((size - 1) * step for size, step in zip(one.shape, one.stride(), strict=True))
    room = one.data_ptr() % BYTES // one.element_size()
    made = torch.empty(room + max(extent, 0), dtype=one.dtype, device=one.device)
    return made.as_strided(one.shape, one.stride(), room).copy_(one)

"""Putting winners into the model: regions of the captured graph replaced by calls, each guarded, the rest untouched.

Whatever replaces a region is a function of the region's inputs: a certified kernel behind its guards, or, for a round
trip, the region's own text. Where a guard does not hold, that text runs: it is the original code.
"""

import ctypes
import heapq
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from kernelwright.backends.cpp import open_kernel, tensor_struct
from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.errors import BlobMissing
from kernelwright.core.frozen import digest
from kernelwright.core.messages.model import Winner
from kernelwright.core.ports import Match, View
from kernelwright.model.capture import Capture, Captured, backend
from kernelwright.model.extract import Found, chosen_sites, extract
from kernelwright.model.graph import Region, forward_text, loaded_text, own_nodes, tensor_of
from kernelwright.ops._draw import torch_dtype

Replacement = tuple[Region, Callable[..., tuple[Any, ...]]]
METHODS = ("view", "expand", "reshape")
"""Of these torch has the method only."""
VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


@dataclass
class Tally:
    """How often spliced kernels ran, and how often a guard sent a call to the original code."""

    spliced: int = 0
    fallbacks: int = 0
    aside: int = 0
    """Calls of whole graphs that ran as the framework has them, because gradients were asked for."""

    def left_aside(self, captured: Captured) -> Callable[..., Any]:
        """Return a graph that counts its calls."""

        def run(*given: Any) -> Any:
            self.aside += 1
            return captured.graph(*given)

        return run


def open_winner(winner: Winner) -> Callable[..., int]:
    """Load a certified artefact, refusing one whose content is not what was certified."""
    content = Path(winner.artefact).read_bytes()
    if digest(content) != winner.artefact_hash:
        raise BlobMissing(winner.artefact_hash, "does not match its certificate")
    return open_kernel(Path(winner.artefact))


def region_text(region: Region) -> str:
    """Return a region's text without the parts that make inputs for it."""
    return f"import torch\n\n\nclass Model(torch.nn.Module):\n{forward_text(region)}"


class SplicedKernel:
    """Calls a C++ winner where its guards hold, the region's own text everywhere else."""

    def __init__(
        self, case: Case, kernel: Callable[..., int], site: tuple[Region, Match], tally: Tally
    ) -> None:
        region, match = site
        self.kernel, self.tally = kernel, tally
        self.original = loaded_text(region_text(region))
        self.__name__ = f"spliced_{case.op}"  # what fx calls the node in the code it generates
        self.inputs = [Bound(region, match.inputs[spec.name], spec) for spec in case.inputs]
        self.outputs = [_answer(view, spec) for view, spec in zip(match.outputs, case.outputs, strict=True)]
        # The structs are laid out once; a call only fills in addresses.
        self.structs = [tensor_struct(spec, 0) for spec in (*case.inputs, *case.outputs)]
        references = [ctypes.byref(struct) for struct in self.structs]
        split = len(case.inputs)
        self.into, self.out_of = self.structs[:split], self.structs[split:]
        self.arguments = (*references[:split], *map(_scalar, case.scalars.values()), *references[split:])

    def __call__(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the region's outputs."""
        kept = []  # a copy some step made must live until the kernel has read it
        for bound, struct in zip(self.inputs, self.into, strict=True):
            tensor = bound.taken(given)
            if tensor is None:
                return self._fallback(given)
            struct.data = tensor.data_ptr() + bound.offset
            kept.append(tensor)
        if torch.is_autocast_enabled("cpu") or (
            torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        ):
            return self._fallback(given)
        outs = [torch.empty(shape, dtype=kind) for _, shape, kind in self.outputs]
        for struct, out in zip(self.out_of, outs, strict=True):
            struct.data = out.data_ptr()
        if self.kernel(*self.arguments):
            return self._fallback(given)
        self.tally.spliced += 1
        return tuple(
            view.applied(out) if view else out for (view, _, _), out in zip(self.outputs, outs, strict=True)
        )

    def _fallback(self, given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        self.tally.fallbacks += 1
        return self.original(*given)


def _answer(view: View, spec: TensorSpec) -> tuple[View | None, tuple[int, ...], torch.dtype]:
    """Return what is left to do to an output, and how it is allocated: a mere reshape is done by allocating it so."""
    if all(method == "reshape" for method, _ in view.steps):
        return None, view.steps[-1][1] if view.steps else spec.shape, torch_dtype(spec.dtype)
    return view, spec.shape, torch_dtype(spec.dtype)


class Bound:
    """One input of the kernel: which tensor of the region it lies in, where, and what that tensor must be."""

    def __init__(self, region: Region, view: View, spec: TensorSpec) -> None:
        self.place, self.view, self.spec = region.inputs.index(view.node), view, spec
        fake = tensor_of(view.node)
        self.expected = Expected(fake.shape, fake.stride(), fake.dtype)
        self.final = Expected(torch.Size(spec.shape), spec.element_strides, torch_dtype(spec.dtype))
        with torch.inference_mode(False):
            base = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")
            made = view.applied(base)
        self.is_view = made is base or made._base is base
        self.fits = self.final.fits(made, "meta")
        self.offset = int(made.storage_offset()) * made.element_size() if self.is_view else 0

    def taken(self, given: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the tensor the kernel's input lies in, `offset` bytes behind its start; None if a guard fails."""
        tensor = given[self.place]
        if not self.fits or not self.expected.fits(tensor, "cpu"):
            return None
        return tensor if self.is_view else self.view.applied(tensor)


class Expected:
    """What a tensor must be: shape, strides, type."""

    def __init__(self, shape: torch.Size, strides: Sequence[int], kind: torch.dtype) -> None:
        self.shape, self.kind, self.strides = shape, kind, tuple(strides)
        # The stride of an axis of one element is nobody's business.
        self.counted = [axis for axis, extent in enumerate(shape) if extent > 1]

    def fits(self, tensor: torch.Tensor, device: str) -> bool:
        """Tell whether a tensor is what was certified, and where."""
        if tensor.shape != self.shape or tensor.dtype is not self.kind or tensor.device.type != device:
            return False
        strides = tensor.stride()
        return strides == self.strides or all(strides[axis] == self.strides[axis] for axis in self.counted)


def _scalar(value: bool | int | float) -> Any:
    if isinstance(value, bool):
        return ctypes.c_int32(value)
    return ctypes.c_int64(value) if isinstance(value, int) else ctypes.c_double(value)


def with_calls(graph: GraphModule, replacements: Sequence[Replacement]) -> GraphModule:
    """Put a call in the place of each region; regions must not share nodes that are gone then.

    Two regions of several outputs each can need each other's, though neither needs itself: the later one is left out.
    """
    replacements = _acyclic(graph, replacements)
    calls: dict[Node, Node] = {}
    returned = {one for node in graph.graph.nodes if node.op == "output" for one in node.all_input_nodes}
    for region, function in replacements:
        given = tuple(calls.get(node, node) for node in region.inputs)
        with graph.graph.inserting_after(region.nodes[-1]):
            call = graph.graph.call_function(function, given)
        for place, node in reversed(list(enumerate(region.outputs))):
            with graph.graph.inserting_after(call):
                part = graph.graph.call_function(_part, (call, place))
            if node in returned:  # whoever called the model may count on how its answer lies in memory
                with graph.graph.inserting_after(part):
                    part = graph.graph.call_function(_laid_out, (part, node.meta["val"].stride()))
            part.meta = dict(node.meta)
            node.replace_all_uses_with(part)
            calls[node] = part
    if replacements:
        for node in graph.graph.nodes:
            if node.target in VIEWS:  # what was spliced may lie otherwise in memory: there a view is no view
                node.target = torch.ops.aten.reshape.default
        _sort(graph)
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return graph


def _acyclic(graph: GraphModule, replacements: Sequence[Replacement]) -> list[Replacement]:
    kept: list[Replacement] = []
    for region, function in replacements:
        regions = [*(one for one, _ in kept), region]
        if len(region.outputs) == 1 or _is_ordered(graph, regions):
            kept.append((region, function))
    return kept


def _is_ordered(graph: GraphModule, regions: Sequence[Region]) -> bool:
    """Tell whether the graph still has an order once each region is one node."""
    home: dict[Node, Node] = {}
    reads: dict[Node, set[Node]] = {}
    for region in regions:
        own = own_nodes(region)
        home |= dict.fromkeys(own, region.nodes[-1])
        reads[region.nodes[-1]] = set(region.inputs)
    for node in graph.graph.nodes:
        if node not in home:
            reads[node] = set(node.all_input_nodes)
    missing = {node: {home.get(one, one) for one in needed} - {node} for node, needed in reads.items()}
    readers: dict[Node, list[Node]] = {node: [] for node in missing}
    for node, needed in missing.items():
        for one in needed:
            readers[one].append(node)
    counts = {node: len(needed) for node, needed in missing.items()}
    ready = [node for node, count in counts.items() if not count]
    done = 0
    while ready:
        done += 1
        for reader in readers[ready.pop()]:
            counts[reader] -= 1
            if not counts[reader]:
                ready.append(reader)
    return done == len(counts)


def _part(values: Sequence[Any], place: int) -> Any:
    return values[place]


def _laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    if tensor.stride() == tuple(strides) or tensor.numel() < 2:
        return tensor
    out = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return out.copy_(tensor)


def _comes_last(node: Node) -> bool:
    return node.op == "output" or node.target is torch.ops.aten.copy_.default


def _sort(graph: GraphModule) -> None:
    """Put every node behind what it reads, otherwise in the order it had; what is written back comes last."""
    nodes = list(graph.graph.nodes)
    order = {node: (_comes_last(node), place) for place, node in enumerate(nodes)}
    missing = {node: len(node.all_input_nodes) for node in nodes}
    ready = [(order[node], node) for node in nodes if not missing[node]]
    heapq.heapify(ready)
    last: Node | None = None
    while ready:
        _, node = heapq.heappop(ready)
        if last is not None:
            last.append(node)
        last = node
        for user in node.users:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (order[user], user))
    if stuck := [node.name for node in nodes if missing[node]]:
        raise ValueError(f"regions put into one graph need each other's results: {stuck[0]}")


def quick(graph: GraphModule) -> GraphModule:
    """Put torch's own functions in the place of ATen's operations: called from Python each is 2 us quicker.

    Measured on the 177 operations of a tiny LLaMA: 886 us eager, 1203 us by operations, 928 us by functions. Only
    functions written in C++ are taken: they pick the same operation from the same arguments.
    """
    for node in graph.graph.nodes:
        if node.op != "call_function" or getattr(node.target, "namespace", "") != "aten":
            continue
        name = node.target.__name__.split(".")[0]
        found = next((getattr(home, name) for home in (torch, F) if hasattr(home, name)), None)
        if name in METHODS:
            node.target = getattr(torch.Tensor, name)
        elif isinstance(found, types.BuiltinFunctionType) and not {"self", "input"} & node.kwargs.keys():
            node.target = found
    graph.recompile()
    return graph


def splice(captured: Captured, winners: Sequence[Winner], tally: Tally) -> GraphModule:
    """Return the graph with every region that a winner serves replaced; the first of two that overlap stays.

    What a region is, is checked here again, on this graph's own values: it may be another than the winner was made for.
    """
    by_case = {winner.case.hash: winner for winner in winners}
    if not by_case:
        return captured.graph
    kernels = {key: open_winner(winner) for key, winner in by_case.items()}
    found = extract(Capture([captured]), with_fusions=False, only={one.case.op for one in winners})
    taken: set[Node] = set()
    replacements: list[Replacement] = []
    for one in found:
        winner = by_case.get(one.case.hash)
        for site in one.sites if winner is not None else ():
            if site.match is None or winner is None or taken & own_nodes(site.region):
                continue
            taken |= own_nodes(site.region)
            call = SplicedKernel(winner.case, kernels[one.case.hash], (site.region, site.match), tally)
            replacements.append((site.region, call))
    return with_calls(captured.graph, replacements)


def compiled_with(module: torch.nn.Module, winners: Sequence[Winner], tally: Tally) -> Callable[..., Any]:
    """Return the model as captured, with the winners in place; no winners gives the same graph unchanged."""

    def finish(captured: Captured) -> Callable[..., Any]:
        return quick(splice(captured, winners, tally)).forward

    return torch.compile(module, backend=backend(module, finish, tally.left_aside), dynamic=False)


def with_own_regions(
    module: torch.nn.Module, tally: Tally, seen: list[Found] | None = None
) -> Callable[..., Any]:
    """Return the model with a disjoint set of its problems replaced by their own text: extracted and put back.

    What is found in each graph is added to `seen`.
    """

    def finish(captured: Captured) -> Callable[..., Any]:
        found = extract(Capture([captured]))
        if seen is not None:
            seen.extend(found)
        texts = {place: loaded_text(one.source) for place, one in enumerate(found)}

        def counted(place: int) -> Callable[..., tuple[Any, ...]]:
            def region(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
                tally.spliced += 1
                return texts[place](*given)

            return region

        sites = chosen_sites(found)
        calls: list[Replacement] = [(site.region, counted(place)) for place, site in sites]
        return quick(with_calls(captured.graph, calls)).forward

    return torch.compile(module, backend=backend(module, finish, tally.left_aside), dynamic=False)

"""From captured graphs to problems: known ops in whatever form they are written, and fusions nobody named.

1. Every op of the drawer looks for itself at every node; what lies between its inputs and its outputs is its region.
2. The region is written as text and run in float64 on the values the model really has there, beside the op's own
   reference. Only where both agree is it a problem of that op; otherwise it is one of op `graph`.
3. Fusions become problems of op `graph`, whose reference is their text.
4. Regions of the same text, shapes and layouts are one problem with a count. Alternatives that overlap are all kept;
   `choose` picks a disjoint set.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch.fx import Interpreter, Node

from kernelwright.core import plugins
from kernelwright.core.captured import CapturedRegion
from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.ports import Match, View
from kernelwright.core.region import Extracted, MadeInput
from kernelwright.model.capture import Capture, Captured, mutated, placeholders
from kernelwright.model.fusion import fusions, gain
from kernelwright.model.graph import (
    OP,
    Region,
    case_of,
    forward_text,
    is_writable,
    loaded_text,
    own_nodes,
    place_of,
    source,
    spanned,
    spec_of,
    tensor_of,
)
from kernelwright.model.plain import captured_region

AGREES = 1e-8
"""Largest difference of region and reference in float64, relative to the largest value: rounding, no other formula."""


@dataclass(frozen=True)
class Site:
    """One place of the model where a problem occurs."""

    graph: int
    """Which of the captured graphs."""
    region: Region
    match: Match | None
    """How the op's case is made there; None for a `graph` problem."""

    @property
    def nodes(self) -> frozenset[tuple[int, str]]:
        """Return the nodes that are gone once it is replaced, by graph and name."""
        return frozenset((self.graph, node.name) for node in own_nodes(self.region))


@dataclass
class Found:
    """A problem of the model and all its sites."""

    op: str
    case: Case
    """The op's case, or the region's own for op `graph`."""
    own_case: Case
    """The region as a case of op `graph`: what its text is called with."""
    source: str
    """The region as a self-contained file."""
    gain: int
    """Bytes one kernel saves over one per operation, at one site."""
    sites: list[Site] = field(default_factory=list)
    constants: tuple[int, ...] = ()
    """Inputs of the region that are weights of the model."""
    aliases: tuple[tuple[int, int], ...] = ()
    """Pairs of the region's inputs that share memory."""
    rejected: str = ""
    """The op it looked like but is not."""
    target: str = ""
    """The kind of device its plain kernels are written for; empty for the one it was captured on."""

    @property
    def where(self) -> str:
        """Return the line of the model's code of the first site."""
        return place_of(self.sites[0].region.nodes[-1])

    @cached_property
    def captured(self) -> CapturedRegion | None:
        """Return the text of a fusion with plain kernels of it; None for a known op."""
        if self.op != OP:
            return None
        return captured_region(self.sites[0].region, self.case, self.source, self.target)

    @property
    def ease(self) -> int:
        """Return 2 if there are kernels for it, 1 if a plain one is written from its graph, else 0."""
        return 2 if self.captured is None else int(bool(self.captured.kernels))


class _Watch(Interpreter):
    """Runs a graph and keeps the values asked for."""

    def __init__(self, captured: Captured, wanted: set[Node]) -> None:
        super().__init__(captured.graph)
        self.wanted, self.kept = wanted, dict[Node, Any]()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n in self.wanted:
            self.kept[n] = value
        return value


def fresh_arguments(captured: Captured) -> list[Any]:
    """Return what the graph was captured with; what it writes to is a copy."""
    written = mutated(captured.graph)
    places = placeholders(captured.graph)
    return [
        value.clone() if node in written else value
        for node, value in zip(places, captured.arguments, strict=True)
    ]


def values(captured: Captured, wanted: set[Node]) -> dict[Node, Any]:
    """Return the values of nodes on the inputs the graph was captured with."""
    watch = _Watch(captured, wanted)
    with torch.no_grad():
        watch.run(*fresh_arguments(captured))
    return watch.kept


def mark_buffers(captured: Captured) -> None:
    """Put into the graph the values of its constants that are no parameters, so that masks can be looked at."""
    written = mutated(captured.graph)
    places = placeholders(captured.graph)
    for node, value in zip(places, captured.arguments, strict=True):
        is_fixed = node.name in captured.constants and not isinstance(value, torch.nn.Parameter)
        if is_fixed and node not in written:
            node.meta["buffer"] = value
    for node in captured.graph.graph.nodes:
        value = getattr(captured.graph, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(value, torch.Tensor):
            node.meta["buffer"] = value


def recognisers() -> dict[str, ModuleType]:
    """Return the ops that can find themselves."""
    loaded = {name: plugins.load("ops", name) for name in plugins.names("ops")}
    return {name: op for name, op in loaded.items() if hasattr(op, "recognise")}


def matches(captured: Captured, ops: Mapping[str, ModuleType]) -> Iterator[tuple[Region, Match]]:
    """Yield every op found in a graph with its region."""
    mark_buffers(captured)
    for node in captured.graph.graph.nodes:
        if tensor_of(node) is None or not is_writable(node):
            continue
        for op in ops.values():
            match = op.recognise(node)
            if match is None:
                continue
            ends = [view.node for view in match.inputs.values()] + list(match.assumed)
            region = spanned([view.node for view in match.outputs], ends)
            if region is not None and all(is_writable(one) for one in region.nodes):
                yield region, match


def _key(region: Region, match: Match | None, constants: frozenset[str]) -> tuple[Any, ...]:
    """Return what makes two regions the same problem."""
    layouts = tuple(
        (str(value.dtype), tuple(value.shape), value.stride(), value.storage_offset(), node.name in constants)
        for node in region.inputs
        if (value := tensor_of(node)) is not None
    )
    if match is None:
        return forward_text(region), layouts
    made = [(name, region.inputs.index(view.node), view.steps) for name, view in match.inputs.items()]
    return forward_text(region), layouts, match.case.hash, tuple(made)


def extract(
    capture: Capture, *, with_fusions: bool = True, only: Collection[str] | None = None
) -> list[Found]:
    """Return every problem of a captured model, in order of first appearance; `only` names the ops looked for."""
    ops = {name: op for name, op in recognisers().items() if only is None or name in only}
    found: list[Found] = []
    for number, captured in enumerate(capture.graphs):
        if not captured.arguments:
            continue
        groups: dict[tuple[Any, ...], list[Site]] = {}
        candidates: list[tuple[Region, Match | None]] = list(matches(captured, ops))
        if with_fusions:
            taken = {frozenset(region.nodes) for region, _ in candidates}
            candidates += [
                (region, None)
                for region in fusions(captured.graph.graph, captured.constants)
                if frozenset(region.nodes) not in taken
            ]
        for region, match in candidates:
            if region.inputs and all(tensor_of(node) is not None for node in region.inputs):
                key = _key(region, match, captured.constants)
                groups.setdefault(key, []).append(Site(number, region, match))
        wanted = {node for sites in groups.values() for node in sites[0].region.inputs}
        known = values(captured, wanted)
        for sites in groups.values():
            one = _problem(captured, sites, known, ops)
            if one is not None:
                found.append(one)
    return _merged(found)


def _problem(
    captured: Captured, sites: list[Site], known: Mapping[Node, Any], ops: Mapping[str, ModuleType]
) -> Found | None:
    region, match = sites[0].region, sites[0].match
    given = [known[node] for node in region.inputs]
    own_case = case_of(region, given, signed=match is not None)
    if own_case is None:
        return None
    text = source(region, own_case)
    made = Found(OP, own_case, own_case, text, gain(region), sites)
    made.constants = tuple(
        place for place, node in enumerate(region.inputs) if node.name in captured.constants
    )
    made.aliases = tuple(
        (place, other)
        for other in range(len(given))
        for place in range(other)
        if given[place].untyped_storage().data_ptr() == given[other].untyped_storage().data_ptr()
        and given[place].numel()
    )
    if match is not None and agrees(region, match, text, known, ops[match.case.op]):
        made.op, made.case = match.case.op, laid_out_case(match)
    elif match is not None:
        if case_of(region, given) is None:
            return None
        made.rejected = match.case.op
        made.sites = [Site(site.graph, site.region, None) for site in sites]
    return made


def laid_out_case(match: Match) -> Case:
    """Return the op's case with the strides its tensors have in the graph: whoever reads an output counts on them."""
    inputs = tuple(
        spec_of(spec.name, match.inputs[spec.name].applied(tensor_of(match.inputs[spec.name].node)))
        for spec in match.case.inputs
    )
    outputs = tuple(
        spec.model_copy(update={"strides": output_strides(view, spec)})
        for view, spec in zip(match.outputs, match.case.outputs, strict=True)
    )
    return match.case.model_copy(update={"inputs": inputs, "outputs": outputs})


def output_strides(view: View, spec: TensorSpec) -> tuple[int, ...] | None:
    """Return how an output of a case lies in memory where the graph has it; None if it is dense in its own order.

    Of a layout that is more than another order of the axes, or seen through a reshape, nothing is recorded.
    """
    value = tensor_of(view.node)
    if any(method != "transpose" for method, _ in view.steps) or not is_permuted(value):
        return None
    for method, numbers in reversed(view.steps):
        value = getattr(value, method)(*numbers)
    found = spec.model_copy(update={"strides": tuple(value.stride())})
    return None if found.is_contiguous else found.strides


def is_permuted(value: torch.Tensor) -> bool:
    """Tell whether a tensor's elements lie side by side, whatever the order of its axes."""
    step = 1
    for stride, extent in sorted(zip(value.stride(), value.shape, strict=True)):
        if extent == 1:
            continue
        if stride != step:
            return False
        step *= extent
    return True


def agrees(region: Region, match: Match, text: str, known: Mapping[Node, Any], op: ModuleType) -> bool:
    """Tell whether region and reference are the same function: in float64, on the values the model has there."""

    def wide(value: torch.Tensor) -> torch.Tensor:
        return value.detach().double() if value.is_floating_point() else value.detach()

    with torch.no_grad():
        tensors = {name: view.applied(wide(known[view.node])) for name, view in match.inputs.items()}
        try:
            ours = loaded_text(text)(*(wide(known[node]) for node in region.inputs))
            theirs = op.reference(tensors, match.case.scalars)
        except RuntimeError:  # an operation without a float64 kernel, or sizes the reference does not take
            return False
    for mine, answer, view in zip(ours, theirs, match.outputs, strict=True):
        placed = view.applied(answer)
        if placed.shape != mine.shape or not torch.equal(torch.isfinite(placed), torch.isfinite(mine)):
            return False
        finite = torch.isfinite(mine)
        if not bool(finite.any()):  # nothing to tell one formula from another by
            return False
        scale = mine[finite].abs().max()
        if bool(((placed - mine)[finite].abs() > AGREES * scale).any()):
            return False
    return True


def _merged(found: Sequence[Found]) -> list[Found]:
    """Return problems of the same op, case and text as one, over all graphs of the model."""
    merged: dict[tuple[str, str, str], Found] = {}
    for one in found:
        key = (one.op, one.case.hash, forward_text(one.sites[0].region))
        if key in merged:
            known = {(site.graph, site.region.nodes) for site in merged[key].sites}
            merged[key].sites += [s for s in one.sites if (s.graph, s.region.nodes) not in known]
        else:
            merged[key] = one
    return list(merged.values())


def choose(alternatives: Sequence[tuple[frozenset[Any], float]]) -> list[int]:
    """Return the places of a disjoint set of alternatives: greedily by gain, then by size, then as they come.

    A pure function of what each alternative covers and what replacing it gains, estimated or measured.
    """
    order = sorted(range(len(alternatives)), key=lambda i: (-alternatives[i][1], -len(alternatives[i][0]), i))
    taken: set[Any] = set()
    chosen = []
    for place in order:
        nodes = alternatives[place][0]
        if nodes and not nodes & taken:
            taken |= nodes
            chosen.append(place)
    return sorted(chosen)


def chosen_sites(found: Sequence[Found], gains: Mapping[int, float] | None = None) -> list[tuple[int, Site]]:
    """Return a disjoint set of sites, each with the place of its problem.

    `gains` are measured gains by place of the problem. Without them known ops go before fusions, because kernels for
    them exist, fusions that a plain kernel is written for before the others, and each kind by estimated gain.
    """
    every = [(place, site) for place, one in enumerate(found) for site in one.sites]
    if gains is not None:
        return [every[i] for i in choose([(site.nodes, gains.get(place, 0.0)) for place, site in every])]
    first = max((one.gain for one in found), default=0) + 1.0
    worth = [(site.nodes, found[place].gain + found[place].ease * first) for place, site in every]
    return [every[i] for i in choose(worth)]


def extracted(one: Found, chosen: int) -> Extracted:
    """Return a problem as it leaves the model process."""
    region, match = one.sites[0].region, one.sites[0].match
    views = {} if match is None or one.op == OP else match.inputs
    return Extracted(
        op=one.op,
        case=one.case,
        own_case=one.own_case,
        made=tuple(
            MadeInput(name=name, place=region.inputs.index(view.node), steps=view.steps)
            for name, view in views.items()
        ),
        count=len(one.sites),
        chosen=chosen,
        gain_bytes=one.gain,
        where=one.where,
        constants=one.constants,
        aliases=one.aliases,
        rejected=one.rejected,
        source=one.source,
        kernels=one.captured.kernels if one.captured else {},
        not_plain=one.captured.not_plain if one.captured else "",
    )

"""Every operation of the captured graphs belongs to one row: a known op, a fusion, a single operation, or the views."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from kernelwright.core import plugins
from kernelwright.core.account import Kind
from kernelwright.core.captured import CapturedRegion
from kernelwright.core.case import Case
from kernelwright.core.roofline import Work
from kernelwright.model.capture import Captured
from kernelwright.model.extract import Found, chosen_sites, extracted, fresh_arguments
from kernelwright.model.fusion import ALONE, computes, is_pointwise
from kernelwright.model.graph import DTYPES, OP, own_nodes, place_of, tensor_of
from kernelwright.model.marks import WHOLE, Key
from kernelwright.ops._match import packet

VIEWS = "views"
FUSED = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")


@dataclass
class Part:
    """One row: what it is and where in the graphs it lies."""

    kind: Kind
    op: str
    name: str
    where: str = ""
    work: Work | None = None
    case: Case | None = None
    captured: CapturedRegion | None = None
    graphs: list[int] = field(default_factory=list)
    """The graph of each of its places."""


@dataclass
class Partition:
    """All rows, and which operation belongs to which."""

    parts: list[Part] = field(default_factory=list)
    owner: dict[Key, int] = field(default_factory=dict)
    """Place of the row that an operation belongs to."""

    def add(self, key: tuple[Kind, str], make: Part, known: dict[tuple[Kind, str], int]) -> int:
        """Return the place of a row, which is new if its key is."""
        if key not in known:
            known[key] = len(self.parts)
            self.parts.append(make)
        return known[key]


class _Flops(Interpreter):
    """Runs a graph and counts the FLOPs of each of its products."""

    def __init__(self, captured: Captured, counter: FlopCounterMode) -> None:
        super().__init__(captured.graph)
        self.counter, self.counts = counter, dict[str, int]()

    def run_node(self, n: Node) -> Any:
        before = self.counter.get_total_flops()
        value = super().run_node(n)
        self.counts[n.name] = self.counter.get_total_flops() - before
        return value


def _attentions() -> list[Any]:
    """Return the kernels the framework's attention ends in; releases differ in which they have."""
    names = [f"_scaled_dot_product_{kind}" for kind in FUSED]
    return [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]


def _attention(q: Sequence[int], k: Sequence[int], v: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOPs of both products: torch's own count knows no CPU, and before 2.13 no shared heads."""
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


def flops(graphs: Sequence[Captured]) -> dict[Key, int]:
    """Return the FLOPs of the matrix products, convolutions and attentions in captured graphs."""
    found: dict[Key, int] = {}
    for number, captured in enumerate(graphs):
        if not captured.arguments:
            continue
        counter = FlopCounterMode(display=False, custom_mapping=dict.fromkeys(_attentions(), _attention))
        with torch.no_grad(), counter:  # what was captured in inference mode takes no part in a backward pass
            run = _Flops(captured, counter)
            run.run(*fresh_arguments(captured))
        found |= {(number, name): count for name, count in run.counts.items()}
    return found


def partition(
    graphs: Sequence[Captured], names: Sequence[Sequence[str]], found: Sequence[Found]
) -> Partition:
    """Return the rows of captured graphs: the disjoint set of problems that would be replaced, and what is left."""
    rows, known, counted = Partition(), dict[tuple[Kind, str], int](), flops(graphs)
    for place, site in chosen_sites(found):
        one = found[place]
        own = {(site.graph, node.name) for node in own_nodes(site.region)}
        row = rows.add((Kind.OP, str(place)), _problem(one, sum(counted.get(key, 0) for key in own)), known)
        rows.parts[row].graphs.append(site.graph)
        rows.owner |= dict.fromkeys(own, row)
    for number, captured in enumerate(graphs):
        if list(names[number]) == [WHOLE]:
            part = Part(Kind.WHOLE, "graph", f"graph {number}, gradients recorded", graphs=[number])
            rows.owner[number, WHOLE] = rows.add((Kind.WHOLE, str(number)), part, known)
            continue
        for node in captured.graph.graph.nodes:
            key = (number, node.name)
            if node.op != "call_function" or key in rows.owner:
                continue
            part = _left_alone(node, counted.get(key, 0))
            row = rows.owner[key] = rows.add((part.kind, part.name), part, known)
            rows.parts[row].graphs.append(number)
    return rows


def _problem(one: Found, flop: int) -> Part:
    work = plugins.load("ops", one.op).work(one.case)
    if one.op == OP:  # the op itself knows the bytes only
        work = work.model_copy(update={"flops": flop})
    kind = Kind.FUSION if one.op == OP else Kind.OP
    told = extracted(one, 0)
    return Part(kind, one.op, told.name, one.where, work, one.case, told.captured)


def _left_alone(node: Node, flop: int) -> Part:
    name = packet(node) or str(getattr(node.target, "__name__", node.target))
    if not computes(node):
        return Part(Kind.VIEWS, VIEWS, VIEWS)
    made = [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
    sizes = "x".join(map(str, made[0].shape)) if made else ""
    kind = str(made[0].dtype).removeprefix("torch.") if made else ""
    title = "_".join(word for word in (name, sizes or "scalar", kind) if word)
    return Part(Kind.SINGLE, name, title, place_of(node), _work(node, made, flop))


def _work(node: Node, made: Sequence[torch.Tensor], flop: int) -> Work:
    """Return the least an operation must do: what it looks up or skips of its inputs is not known, so not counted."""
    reads = 0
    if is_pointwise(node) or packet(node) in ALONE:
        inputs = (tensor_of(one) for one in node.all_input_nodes)
        reads = sum(_bytes(value) for value in inputs if value is not None)
    kind = DTYPES.get(made[0].dtype) if made else None
    return Work(
        bytes_read=reads,
        bytes_written=sum(map(_bytes, made)),
        flops=flop,
        compute_class=kind.value if kind else "fp32",
    )


def _bytes(value: torch.Tensor) -> int:
    """Return the bytes of a tensor's own elements: of an expanded one only those that exist."""
    extents = [n for n, stride in zip(value.shape, value.stride(), strict=True) if stride or not n]
    return math.prod(extents) * value.element_size()


def summed(times: Mapping[Key, float], rows: Partition) -> list[float]:
    """Return the time of each row."""
    found = [0.0] * len(rows.parts)
    for key, time_us in times.items():
        found[rows.owner[key]] += time_us
    return found

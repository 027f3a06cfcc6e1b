"""Fusions nobody named: which sets of nodes of a captured graph could be one kernel.

1. Pointwise operations, reductions and the views between them grow together as long as the set stays convex, that is,
   as long as no path leaves it and comes back.
2. A matrix product takes along what is done to its operand alone before it, and to its result alone behind it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from kernelwright.model.graph import Region, is_writable, region_of, tensor_of
from kernelwright.ops._match import called, packet

VIEWS = {
    *("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "transpose", "permute", "t"),
    *("slice", "select", "split", "split_with_sizes", "unbind", "getitem", "alias", "detach"),
    *("view_as_real", "view_as_complex"),
}
MOVES = {"clone", "_to_copy", "cat", "stack"}
"""They only copy, but into a kernel that works on the elements anyway they fit."""
REDUCTIONS = {
    *("sum", "mean", "amax", "amin", "var", "softmax", "_softmax", "log_softmax", "rms_norm", "layer_norm"),
}
PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm"}
ALONE = PRODUCTS | {
    *("scaled_dot_product_attention", "cross_entropy_loss", "group_norm", "convolution"),
    *("rms_norm", "layer_norm", "softmax", "log_softmax"),
}
"""Operations that are a problem by themselves where no op knows them: attention with a mask, a product with a bias, a
norm without weights."""
LARGEST = 48
"""Nodes of one fusion; a kernel of more is nobody's to write."""
EPILOGUE = 16
LAUNCH_BYTES = 4 << 20
"""What an H200 moves in the microsecond between two kernels: the worth of a launch that is saved."""


@dataclass(frozen=True)
class Reach:
    """Which node depends on which, as bits in the order of the graph."""

    order: dict[Node, int]
    above: dict[Node, int]
    below: dict[Node, int]

    def is_convex(self, nodes: set[Node]) -> bool:
        """Tell whether no path leaves the set and comes back."""
        members = above = below = 0
        for node in nodes:
            members |= 1 << self.order[node]
            above |= self.above[node]
            below |= self.below[node]
        return not above & below & ~members


def reach(graph: Graph) -> Reach:
    """Return the dependencies of a graph."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    above: dict[Node, int] = {}
    below = dict.fromkeys(order, 0)
    for node in graph.nodes:
        above[node] = 0
        for one in node.all_input_nodes:
            above[node] |= above[one] | 1 << order[one]
    for node in reversed(graph.nodes):
        for one in node.all_input_nodes:
            below[one] |= below[node] | 1 << order[node]
    return Reach(order, above, below)


def is_pointwise(node: Node) -> bool:
    """Tell whether a node works element by element, by the tag the framework gives it, and always alike."""
    tags = getattr(node.target, "tags", ())
    return is_writable(node) and torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags


def _fits(node: Node) -> bool:
    return is_writable(node) and (is_pointwise(node) or packet(node) in VIEWS | MOVES | REDUCTIONS)


def computes(node: Node) -> bool:
    """Tell whether a node is more than another view of the same data."""
    return packet(node) not in VIEWS


def fusions(graph: Graph, constants: frozenset[str] = frozenset()) -> Iterator[Region]:
    """Yield every fusion worth a look: two operations on data that compute something, or a single large one.

    What is made of weights and factories alone (tables of angles, masks) is the same in every call and left out.
    """
    known = reach(graph)
    data = sum(
        1 << place
        for node, place in known.order.items()
        if node.op == "placeholder" and node.name not in constants
    )
    moving = {node for node in graph.nodes if known.above[node] & data}
    grown = [*_grown_together(graph, known, moving), *_around_products(graph, known, moving)]
    for nodes in dict.fromkeys(frozenset(_trimmed(nodes)) for nodes in grown):
        if sum(computes(node) for node in nodes) >= 2:
            yield region_of(nodes)
    for node in graph.nodes:
        if node in moving and called(node, *ALONE):
            yield region_of([node])


def _grown_together(graph: Graph, known: Reach, moving: set[Node]) -> list[set[Node]]:
    groups: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        if node not in moving or not _fits(node):
            continue
        own = {node}
        for one in node.all_input_nodes:
            other = groups.get(one)
            if other is None or other <= own or len(own | other) > LARGEST:
                continue
            if known.is_convex(own | other):
                own |= other
        for member in own:
            groups[member] = own
    return list({id(group): group for group in groups.values()}.values())


def _around_products(graph: Graph, known: Reach, moving: set[Node]) -> Iterator[set[Node]]:
    for node in graph.nodes:
        if node not in moving or not called(node, *PRODUCTS):
            continue
        before, behind = _prologue(node) & moving, _epilogue(node, known)
        if len(before | behind) > 1:
            yield before | behind if known.is_convex(before | behind) else behind


def _prologue(product: Node) -> set[Node]:
    """Return the product with what is computed for it alone."""
    found, waiting = {product}, [product]
    while waiting and len(found) < EPILOGUE:
        for one in waiting.pop().all_input_nodes:
            is_own = all(user in found for user in one.users)
            if one not in found and is_own and (is_pointwise(one) or called(one, *VIEWS, *MOVES)):
                found.add(one)
                waiting.append(one)
    return found


def _epilogue(product: Node, known: Reach) -> set[Node]:
    """Return the product with the longest run of pointwise work behind it that leaves one result."""
    found, best = {product}, {product}
    node = product.next
    while node.op != "root" and len(found) < EPILOGUE:
        is_behind = any(one in found for one in node.all_input_nodes)
        if (
            is_behind
            and (is_pointwise(node) or called(node, *VIEWS, *MOVES))
            and known.is_convex(found | {node})
        ):
            found.add(node)
            if sum(any(user not in found for user in one.users) for one in found) == 1:
                best = set(found)
        node = node.next
    return best


def _trimmed(nodes: set[Node]) -> set[Node]:
    """Return the nodes without views at the edge: those cost nothing, and whoever reads them can make them."""
    left = set(nodes)
    while edge := {
        node
        for node in left
        if not computes(node)
        and (
            all(user not in left for user in node.users)
            or (not any(one in left for one in node.all_input_nodes) and _is_only_way_in(node, left))
        )
    }:
        left -= edge
    return left


def _is_only_way_in(node: Node, nodes: set[Node]) -> bool:
    """Tell whether a view gives one tensor and nothing else in the set reads what it views: else more would go in."""
    readers = {user for one in node.all_input_nodes for user in one.users}
    return tensor_of(node) is not None and readers & nodes == {node}


def bytes_of(nodes: Sequence[Node]) -> int:
    """Return the bytes of the tensors these nodes stand for."""
    return sum(
        value.numel() * value.element_size() for node in nodes if (value := tensor_of(node)) is not None
    )


def gain(region: Region) -> int:
    """Return, in bytes, what one kernel saves over one per operation: intermediates not moved, launches not made."""
    apart = sum(bytes_of([node, *node.all_input_nodes]) for node in region.nodes if computes(node))
    launches = sum(computes(node) for node in region.nodes) - 1
    return max(0, apart - bytes_of([*region.inputs, *region.outputs])) + LAUNCH_BYTES * launches

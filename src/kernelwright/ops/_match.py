"""What recognisers share, not an op: reading the nodes of a captured graph. They are torch.fx's, met without torch."""

import math
import operator
from collections.abc import Iterator
from typing import Any

from kernelwright.core.case import DType
from kernelwright.core.ports import View

KINDS = {
    "torch.float32": DType.FP32,
    "torch.float16": DType.FP16,
    "torch.bfloat16": DType.BF16,
    "torch.float64": DType.FP64,
    "torch.int64": DType.INT64,
    "torch.int32": DType.INT32,
    "torch.bool": DType.BOOL,
}
FLOATS = (DType.FP32, DType.FP16, DType.BF16)
COPIES = ("clone", "alias", "detach", "lift_fresh_copy")
RESHAPES = ("view", "_unsafe_view", "reshape")
FOLDED_ELEMENTS = 1 << 26
"""Largest constant worth evaluating: a causal mask of 8192 positions."""
UNSETTLED = ("empty", "rand", "bernoulli", "dropout", "multinomial", "normal")
"""Beginnings of operations whose value is not a function of their arguments."""


def is_node(value: Any) -> bool:
    """Tell whether an argument is a node and not a number, a list or None."""
    return hasattr(value, "op") and hasattr(value, "users")


def packet(node: Any) -> str:
    """Return the operation's name without its overload: `mul`, `rms_norm`, `getitem`; empty for what is no ATen."""
    if not is_node(node) or node.op != "call_function":
        return ""
    if node.target is operator.getitem:
        return "getitem"
    # By its namespace: a user's own operator may be called like one of ATen's.
    return node.target.__name__.split(".")[0] if getattr(node.target, "namespace", "") == "aten" else ""


def called(node: Any, *names: str) -> bool:
    """Tell whether a node calls one of these ATen operations."""
    return packet(node) in names


def argument(node: Any, place: int, name: str, default: Any = None) -> Any:
    """Return an argument by position or name."""
    return node.args[place] if place < len(node.args) else node.kwargs.get(name, default)


def number(value: Any) -> float | None:
    """Return a number that is written in the graph."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def shape(node: Any) -> tuple[int, ...]:
    """Return the extents of a node's value."""
    return tuple(int(extent) for extent in node.meta["val"].shape)


def kind(node: Any) -> DType | None:
    """Return the element type of a node's value; None for what is no tensor of a known type."""
    value = node.meta.get("val") if is_node(node) else None
    return KINDS.get(str(getattr(value, "dtype", "")))


def are_floats(*nodes: Any) -> bool:
    """Tell whether all values are tensors of one type that candidates serve."""
    kinds = {kind(node) for node in nodes}
    return len(kinds) == 1 and kinds <= set(FLOATS)


def commuted(node: Any, *names: str) -> Iterator[tuple[Any, Any]]:
    """Yield the two operands in both orders if the node calls one of these operations."""
    if called(node, *names) and len(node.args) >= 2 and argument(node, 2, "alpha", 1) == 1:
        first, second = node.args[0], node.args[1]
        yield first, second
        yield second, first


def uncast(node: Any) -> Any:
    """Return what a floating-point value was before casts between floating-point types and plain copies."""
    while called(node, "_to_copy", *COPIES) and (
        called(node, *COPIES) or {kind(node), kind(node.args[0])} <= {*FLOATS, DType.FP64}
    ):
        node = node.args[0]
    return node


def bare(node: Any) -> Any:
    """Return what a value was before casts, copies, and views that keep the order of its elements."""
    while True:
        before = uncast(node)
        keeps = called(before, *RESHAPES, "unsqueeze", "squeeze") or (
            called(before, "permute") and _keeps_order(before.args[0], before.args[1])
        )
        if not keeps and before is node:
            return node
        node = before.args[0] if keeps else before


def _keeps_order(node: Any, order: Any) -> bool:
    """Tell whether a permutation moves axes of one element only."""
    moved = [axis % len(order) for axis in order]
    kept = [axis for axis in moved if shape(node)[axis] != 1]
    return kept == sorted(kept)


def operands(node: Any, *values: Any) -> list[Any] | None:
    """Return an op's operands in the type of its result, without the casts before them; None if one has no such form.

    An fp32 result of halves that is only ever cast back to them is no end of an op: the cast is.
    """
    own = {kind(uncast(value)) for value in values}
    behind = {kind(user) if called(user, "_to_copy") else None for user in node.users}
    if kind(node) not in own and own == behind:
        return None
    found = [_in_kind(value, kind(node)) for value in values]
    return None if kind(node) not in FLOATS or None in found else found


def _in_kind(value: Any, wanted: DType | None) -> Any | None:
    """Return the first of a chain of casts that is of a type."""
    found = None
    while True:
        found = value if kind(value) is wanted else found
        before = value.args[0] if called(value, "_to_copy", *COPIES) else value
        if before is value or kind(before) not in {*FLOATS, DType.FP64}:
            return found
        value = before


def inside_cast(node: Any) -> Any:
    """Return what a last cast between floating-point types was applied to: the op's own end, if it works in fp32."""
    is_cast = called(node, "_to_copy") and {kind(node), kind(node.args[0])} <= {*FLOATS, DType.FP64}
    return node.args[0] if is_cast else node


def is_last(node: Any, dims: Any) -> bool:
    """Tell whether an axis, or a list of one, is the last of a node's value."""
    axes = list(dims) if isinstance(dims, list | tuple) else [dims]
    return axes in ([-1], [len(shape(node)) - 1])


def flat(node: Any, cols: int | None = None) -> View:
    """Return a value as a matrix: leading axes flattened into rows."""
    cols = shape(node)[-1] if cols is None else cols
    rows = math.prod(shape(node)) // cols if cols else math.prod(shape(node)[:-1])
    return View(node, (("reshape", (rows, cols)),))


def shaped(node: Any) -> View:
    """Return how a case's output becomes a node's value: by its shape."""
    return View(node, (("reshape", shape(node)),))


def extents(view: View) -> tuple[int, ...]:
    """Return the extents of a value after its steps."""
    return tuple(int(extent) for extent in view.applied(view.node.meta["val"]).shape)


def rows_of(node: Any) -> int:
    """Return the number of rows of a value's last axis."""
    return math.prod(shape(node)[:-1])


def same(first: Any, second: Any) -> bool:
    """Tell whether two arguments are the same value: one node, or the same operation written twice."""
    if not is_node(first) or not is_node(second):
        return bool(first == second)
    if first is second:
        return True
    is_twin = packet(first) != "" and first.target is second.target and first.kwargs == second.kwargs
    return (
        is_twin
        and not packet(first).startswith(UNSETTLED)
        and len(first.args) == len(second.args)
        and all(same(one, other) for one, other in zip(first.args, second.args, strict=True))
    )


def halves(first: Any, second: Any) -> Any | None:
    """Return the value whose lower and upper half of the last axis these are, or None."""
    parts = [_part(node) for node in (first, second)]
    if None in parts:
        return None
    (one, low, stop, step), (other, start, end, other_step) = (part for part in parts if part is not None)
    if one is not other or step != 1 or other_step != 1:
        return None
    extent = shape(one)[-1]
    return one if (low, stop, start, end) == (0, extent // 2, extent // 2, extent) else None


def alternate(first: Any, second: Any) -> Any | None:
    """Return the value whose even and odd elements of the last axis these are, or None."""
    pairs = [entry(node) for node in (first, second)]
    if None not in pairs:
        (one, low), (other, high) = (pair for pair in pairs if pair is not None)
        return paired(one) if same(one, other) and (low, high) == (0, 1) else None
    parts = [_part(node) for node in (first, second)]
    if None in parts:
        return None
    (one, low, _, step), (other, start, _, other_step) = (part for part in parts if part is not None)
    return one if one is other and (low, step, start, other_step) == (0, 2, 1, 2) else None


def whole_of(first: Any, second: Any) -> tuple[Any, bool] | None:
    """Return what two parts are halves, or even and odd elements, of."""
    if (whole := halves(first, second)) is not None:
        return whole, False
    whole = alternate(first, second)
    return None if whole is None else (whole, True)


def joined(node: Any) -> tuple[Any, Any, bool] | None:
    """Return two parts put together as halves or, interleaved, as even and odd elements."""
    if called(node, "cat") and len(node.args[0]) == 2 and is_last(node, argument(node, 1, "dim", 0)):
        return *node.args[0], False
    inner: Any = node.args[0] if called(node, *RESHAPES) else None
    if called(inner, "stack") and len(inner.args[0]) == 2 and is_last(inner, argument(inner, 1, "dim", 0)):
        return *inner.args[0], True
    return None


def entry(node: Any) -> tuple[Any, int] | None:
    """Return a value and which entry of its last axis a node is: by `select`, or by `unbind`."""
    if called(node, "select") and is_last(node.args[0], node.args[1]):
        return node.args[0], node.args[2] % shape(node.args[0])[-1]
    if called(node, "getitem") and called(node.args[0], "unbind"):
        source = node.args[0].args[0]
        return (source, node.args[1]) if is_last(source, argument(node.args[0], 1, "dim", 0)) else None
    return None


def paired(node: Any) -> Any | None:
    """Return the value whose last axis was cut into pairs, or None."""
    whole = node.args[0] if called(node, *RESHAPES) else None
    is_cut = whole is not None and shape(node) == (*shape(whole)[:-1], shape(whole)[-1] // 2, 2)
    return whole if is_cut else None


def _part(node: Any) -> tuple[Any, int, int, int] | None:
    """Return source, start, stop and step of a part of the last axis."""
    if called(node, "slice") and is_last(node.args[0], argument(node, 1, "dim", 0)):
        source, extent = node.args[0], shape(node.args[0])[-1]
        start, end = argument(node, 2, "start") or 0, argument(node, 3, "end")
        stop = extent if end is None else min(extent, end if end >= 0 else end + extent)
        return source, start if start >= 0 else start + extent, stop, argument(node, 4, "step", 1)
    if called(node, "getitem") and called(node.args[0], "split", "chunk", "split_with_sizes"):
        source = node.args[0].args[0]
        if is_last(source, argument(node.args[0], 2, "dim", 0)):
            extents = [int(part.shape[-1]) for part in node.args[0].meta["val"]]
            start = sum(extents[: node.args[1]])
            return source, start, start + extents[node.args[1]], 1
    return None


def folded(node: Any) -> Any | None:
    """Return the value of a node that depends on no data: factories, numbers and buffers only; None if it does."""
    known: dict[Any, Any] = {}
    wanted = _ancestors(node)
    if wanted is None:
        return None
    for one in wanted:
        if one.op == "call_function":
            args = _replaced(one.args, known)
            known[one] = one.target(*args, **_replaced(one.kwargs, known))
        else:
            known[one] = one.meta["buffer"]
    return known[node]


def _ancestors(node: Any) -> list[Any] | None:
    """Return a node and all it depends on in the order of the graph; None if data is among them or it is too large."""
    found, waiting = set(), [node]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        is_settled = one.op == "call_function" and not packet(one).startswith(UNSETTLED) and packet(one) != ""
        if not is_settled and one.meta.get("buffer") is None:
            return None
        if kind(one) is not None and math.prod(shape(one)) > FOLDED_ELEMENTS:
            return None
        found.add(one)
        waiting.extend(one.all_input_nodes)
    order = {each: place for place, each in enumerate(node.graph.nodes)}
    return sorted(found, key=order.__getitem__)


def _replaced(value: Any, known: dict[Any, Any]) -> Any:
    if is_node(value):
        return known[value]
    if isinstance(value, list | tuple):
        return [_replaced(item, known) for item in value]
    if isinstance(value, dict):
        return {key: _replaced(item, known) for key, item in value.items()}
    return value

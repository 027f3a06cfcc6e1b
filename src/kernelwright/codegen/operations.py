"""What an ATen operation on single elements, or a view, is in plain loops.

Names are those of ATen without the overload. An operation that is not here ends in `NotPlain`, by its name.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from kernelwright.codegen.indices import looked
from kernelwright.codegen.values import (
    Counted,
    Expression,
    Indices,
    Kind,
    Made,
    NotPlain,
    Pieced,
    Stages,
    Value,
    as_kind,
    broadcast,
    number,
    permuted,
    reshaped,
    sliced,
)

HELPERS = {
    "sigmoid": "inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }",
    "silu": "inline float silu(float x) { return x / (1.0f + std::exp(-x)); }",
    "gelu": "inline float gelu(float x) { return 0.5f * x * std::erfc(x * -0.70710678118654752f); }",
    "gelu_tanh": "inline float gelu_tanh(float x) {\n"
    "    return 0.5f * x * (1.0f + std::tanh(0.79788456080286536f * (x + 0.044715f * x * x * x)));\n}",
    "relu": "inline float relu(float x) { return x < 0.0f ? 0.0f : x; }",
    "square": "inline float square(float x) { return x * x; }",
    "cube": "inline float cube(float x) { return x * x * x; }",
    "rsqrt": "inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }",
    "softplus": "inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }",
    "leaky": "inline float leaky(float x, float slope) { return x > 0.0f ? x : x * slope; }",
    "chosen": "inline float chosen(bool test, float a, float b) { return test ? a : b; }",
    # A NaN on either side comes through, as in torch.
    "larger": "inline float larger(float a, float b) { return a != a || a > b ? a : b; }",
    "smaller": "inline float smaller(float a, float b) { return a != a || a < b ? a : b; }",
}
"""Functions a source may call; only those it does call are written into it."""
FLOATS = {
    **{
        name: f"std::{name}({{0}})"
        for name in ("exp", "exp2", "log", "log2", "log1p", "expm1", "sqrt", "erf")
    },
    **{name: f"std::{name}({{0}})" for name in ("sin", "cos", "tan", "tanh", "atan", "floor", "ceil", "abs")},
    **{name: f"{name}({{0}})" for name in ("sigmoid", "silu", "relu", "rsqrt")},
    "reciprocal": "(1.0f / {0})",
    "div": "({0} / {1})",
    "leaky_relu": "leaky({0}, {1})",
}
"""Operations on floats, whatever comes in."""
ARITHMETIC = {"mul": "({0} * {1})", "neg": "(-{0})"}
CHOICES = {"maximum": "larger({0}, {1})", "minimum": "smaller({0}, {1})"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGIC = {"logical_and": "&&", "logical_or": "||", "bitwise_and": "&&", "bitwise_or": "||"}
SAME = ("clone", "detach", "alias", "contiguous", "lift_fresh_copy")
Handler = Callable[..., Value]


def shape_of(values: Sequence[Value]) -> tuple[int, ...]:
    """Return the shape that values are stretched to together."""
    rank = max(len(value.shape) for value in values)
    padded = [(1,) * (rank - len(value.shape)) + value.shape for value in values]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*padded, strict=True))


class Elements:
    """Operations on single elements, and views, over the stages of one kernel."""

    def __init__(self) -> None:
        self.stages = Stages()

    def pointwise(self, text: str, kind: Kind, *given: Value) -> Value:
        """Return an expression of the elements of values; what is stretched and not cheap is computed once."""
        shape = shape_of(given)
        numel = math.prod(shape)
        values = [broadcast(self.stages.stored(one) if one.numel < numel else one, shape) for one in given]
        return Value(shape, kind, lambda at: Made(text, tuple(value.at(at) for value in values)))

    def floats(self, text: str, *given: Any) -> Value:
        """Return an expression of values as floats."""
        return self.pointwise(text, Kind.FLOAT, *(as_kind(lifted(one), Kind.FLOAT) for one in given))

    def alike(self, text: str, *given: Any) -> Value:
        """Return an expression of values in the type they have in common."""
        values = [lifted(one) for one in given]
        kind = Kind.FLOAT if any(one.kind is Kind.FLOAT for one in values) else Kind.INT
        return self.pointwise(text, kind, *(as_kind(one, kind) for one in values))

    def compared(self, sign: str, *given: Any) -> Value:
        """Return a comparison."""
        found = self.alike(f"({{0}} {sign} {{1}})", *given)
        return Value(found.shape, Kind.BOOL, found.at)

    def apply(self, name: str, args: Sequence[Any], named: dict[str, Any]) -> Value:
        """Return what an operation gives on values and numbers."""
        if name in FLOATS:
            if name == "div" and named.get("rounding_mode"):
                raise NotPlain("a division that rounds")
            given = (args[0], args[1] if len(args) > 1 else 0.01) if name == "leaky_relu" else args
            return self.floats(FLOATS[name], *given)
        if name in ARITHMETIC:
            return self.alike(ARITHMETIC[name], *args)
        if name in CHOICES:
            return self.floats(CHOICES[name], *args)
        if name in COMPARISONS:
            return self.compared(COMPARISONS[name], *args)
        if name in LOGIC:
            both = [as_kind(lifted(one), Kind.BOOL) for one in args]
            return self.pointwise(f"({{0}} {LOGIC[name]} {{1}})", Kind.BOOL, *both)
        if name in SAME:
            return lifted(args[0])
        handler: Handler | None = getattr(self, f"_{name.removeprefix('_')}", None)
        if handler is None:
            raise NotPlain(f"aten.{name}")
        return handler(*args, **named)

    def _add(self, left: Any, right: Any, alpha: float = 1) -> Value:
        return self.alike(
            "({0} + {1})", left, right if alpha == 1 else self.alike("({0} * {1})", right, alpha)
        )

    def _sub(self, left: Any, right: Any, alpha: float = 1) -> Value:
        return self.alike(
            "({0} - {1})", left, right if alpha == 1 else self.alike("({0} * {1})", right, alpha)
        )

    def _rsub(self, left: Any, right: Any, alpha: float = 1) -> Value:
        return self._sub(right, left, alpha)

    def _pow(self, base: Any, exponent: Any) -> Value:
        known = {
            2: "square({0})",
            3: "cube({0})",
            0.5: "std::sqrt({0})",
            -0.5: "rsqrt({0})",
            -1: "(1.0f / {0})",
        }
        if not isinstance(exponent, Value) and exponent in known:
            return self.floats(known[exponent], base)
        return self.floats("std::pow({0}, {1})", base, exponent)

    def _gelu(self, x: Value, approximate: str = "none") -> Value:
        return self.floats("gelu({0})" if approximate == "none" else "gelu_tanh({0})", x)

    def _softplus(self, x: Value, beta: float = 1, threshold: float = 20) -> Value:
        if (beta, threshold) != (1, 20):
            raise NotPlain("aten.softplus with other numbers")
        return self.floats("softplus({0})", x)

    def _clamp(self, x: Value, low: Any = None, high: Any = None) -> Value:
        found = x if low is None else self.floats("larger({0}, {1})", x, low)
        return found if high is None else self.floats("smaller({0}, {1})", found, high)

    def _clamp_min(self, x: Value, low: Any) -> Value:
        return self._clamp(x, low)

    def _clamp_max(self, x: Value, high: Any) -> Value:
        return self._clamp(x, None, high)

    def _hardtanh(self, x: Value, low: float = -1.0, high: float = 1.0) -> Value:
        return self._clamp(x, low, high)

    def _logical_not(self, x: Value) -> Value:
        return self.pointwise("(!{0})", Kind.BOOL, as_kind(x, Kind.BOOL))

    _bitwise_not = _logical_not

    def _where(self, test: Value, left: Any, right: Any) -> Value:
        values = [lifted(left), lifted(right)]
        kind = Kind.FLOAT if any(one.kind is Kind.FLOAT for one in values) else values[0].kind
        both = [as_kind(one, kind) for one in values]
        text = "chosen({0}, {1}, {2})" if kind is Kind.FLOAT else "({0} ? {1} : {2})"
        return self.pointwise(text, kind, as_kind(test, Kind.BOOL), *both)

    def _masked_fill(self, x: Value, mask: Value, value: Any) -> Value:
        return self._where(mask, value, x)

    def _addcmul(self, x: Value, left: Value, right: Value, value: float = 1) -> Value:
        return self._add(x, self.alike("({0} * {1})", left, right), value)

    def _lerp(self, start: Value, end: Value, weight: Any) -> Value:
        return self._add(start, self.floats("({0} * ({1} - {2}))", weight, end, start))

    def _full(self, size: Sequence[int], value: Any, **_: Any) -> Value:
        return broadcast(number(value), tuple(size))

    def _full_like(self, x: Value, value: Any, **_: Any) -> Value:
        return broadcast(as_kind(number(value), x.kind), x.shape)

    def _zeros_like(self, x: Value, **_: Any) -> Value:
        return self._full_like(x, 0)

    def _ones_like(self, x: Value, **_: Any) -> Value:
        return self._full_like(x, 1)

    def _arange(self, start: int, end: int | None = None, step: int = 1, **_: Any) -> Value:
        first, last = (0, start) if end is None else (start, end)
        count = max(0, -(-(last - first) // step))
        return Value((count,), Kind.INT, lambda at: Counted(at[0] * step + first), is_cheap=True)

    def _embedding(self, table: Value, rows: Value, *_: Any, **__: Any) -> Value:
        return self._index(table, [rows])

    def _index(self, x: Value, rows: Sequence[Value | None]) -> Value:
        if len(rows) != 1 or rows[0] is None or rows[0].kind is not Kind.INT:
            raise NotPlain("an index of more than one axis")
        source, first = self.stages.stored(x), self.stages.stored(rows[0])

        def at(indices: Indices) -> Expression:
            cut = len(first.shape)
            return source.at([looked(first.at(indices[:cut]), x.shape[0]), *indices[cut:]])

        return Value((*first.shape, *x.shape[1:]), x.kind, at)

    def _reshape(self, x: Value, size: Sequence[int]) -> Value:
        known = [int(extent) for extent in size]
        if -1 in known:
            known[known.index(-1)] = x.numel // max(1, -math.prod(known))
        return reshaped(x, tuple(known))

    _view = _unsafe_view = _reshape

    def _permute(self, x: Value, order: Sequence[int]) -> Value:
        return permuted(x, [axis % len(x.shape) for axis in order])

    def _transpose(self, x: Value, one: int, other: int) -> Value:
        order = list(range(len(x.shape)))
        order[one], order[other] = order[other], order[one]
        return permuted(x, order)

    def _t(self, x: Value) -> Value:
        return permuted(x, list(reversed(range(len(x.shape)))))

    def _unsqueeze(self, x: Value, axis: int) -> Value:
        axis %= len(x.shape) + 1
        return reshaped(x, (*x.shape[:axis], 1, *x.shape[axis:]))

    def _squeeze(self, x: Value, axes: Any = None) -> Value:
        rank = max(1, len(x.shape))
        wanted = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
        gone = {axis % rank for axis in wanted}
        return reshaped(x, tuple(n for axis, n in enumerate(x.shape) if axis not in gone or n != 1))

    def _expand(self, x: Value, size: Sequence[int], **_: Any) -> Value:
        lead = len(size) - len(x.shape)
        shape = tuple(x.shape[axis - lead] if n == -1 else int(n) for axis, n in enumerate(size))
        return broadcast(self.stages.stored(x) if math.prod(shape) > x.numel else x, shape)

    def _slice(self, x: Value, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
        axis %= len(x.shape)
        places = range(x.shape[axis])[slice(start, end, step)]
        return sliced(x, axis, places.start, len(places), step)

    def _select(self, x: Value, axis: int, place: int) -> Value:
        axis %= len(x.shape)
        part = sliced(x, axis, place % x.shape[axis], 1)
        return reshaped(part, (*x.shape[:axis], *x.shape[axis + 1 :]))

    def _cat(self, parts: Sequence[Value], axis: int = 0) -> Value:
        axis %= len(parts[0].shape)
        kind = Kind.FLOAT if any(one.kind is Kind.FLOAT for one in parts) else parts[0].kind
        values = [as_kind(one, kind) for one in parts]
        starts = [sum(one.shape[axis] for one in values[:place]) for place in range(len(values))]
        shape = (
            *values[0].shape[:axis],
            sum(one.shape[axis] for one in values),
            *values[0].shape[axis + 1 :],
        )

        def at(indices: Indices) -> Expression:
            found: Expression | None = None
            for one, start in zip(reversed(values), reversed(starts), strict=True):
                own = list(indices)
                own[axis] = own[axis] - start
                piece = one.at(own)
                found = Pieced(indices[axis], start + one.shape[axis], piece, found) if found else piece
            assert found is not None
            return found

        return Value(shape, kind, at)

    def _stack(self, parts: Sequence[Value], axis: int = 0) -> Value:
        return self._cat([self._unsqueeze(one, axis) for one in parts], axis)


def lifted(value: Any) -> Value:
    """Return a number as a value, a value as it is."""
    if isinstance(value, Value):
        return value
    if isinstance(value, bool | int | float):
        return number(value)
    raise NotPlain(f"an argument that is a {type(value).__name__}")

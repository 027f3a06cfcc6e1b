"""Values of a graph as expressions of their indices, and the stages in which they are computed.

A value says how its element at some indices is written in C++. Views only change the indices, pointwise operations only
put expressions together; a reduction, and what is used more than once, gets a stage: loops that fill a buffer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Indices = Sequence[str]
At = Callable[[Indices], str]


class Kind(StrEnum):
    """C++ type of a value."""

    FLOAT = "float"
    INT = "int64_t"
    BOOL = "bool"


class NotPlain(ValueError):
    """What cannot be written as plain loops, in words."""


@dataclass(frozen=True)
class Value:
    """A tensor as an expression of its indices."""

    shape: tuple[int, ...]
    kind: Kind
    at: At
    is_cheap: bool = False
    """Whether writing it twice costs no more than reading it twice."""

    @property
    def numel(self) -> int:
        """Return its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Stage:
    """Loops that fill one buffer: over its indices and, for a reduction, over the indices that are summed up."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    expression: str
    reduced: tuple[int, ...] = ()
    """Extents of the inner loops."""
    how: str = ""
    """`sum`, `max` or `min`."""
    divisor: int = 1
    """A sum is divided by this at the end."""


@dataclass
class Stages:
    """The stages so far."""

    found: list[Stage] = field(default_factory=list)

    def stored(self, value: Value) -> Value:
        """Return a value that reads a buffer, which a new stage fills; a cheap one as it is."""
        if value.is_cheap:
            return value
        indices = loop_indices(value.shape)
        return self._add(Stage(self._name(), value.shape, value.kind, value.at(indices)))

    def reduced(self, value: Value, axes: Sequence[int], how: str, *, mean: bool = False) -> Value:
        """Return a value with some axes summed up to extent one."""
        axes = sorted(axis % len(value.shape) for axis in axes) if value.shape else []
        kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(value.shape))
        extents = tuple(value.shape[axis] for axis in axes)
        if 0 in extents:
            raise NotPlain("it reduces over nothing")
        indices = list(loop_indices(kept))
        for number, axis in enumerate(axes):
            indices[axis] = f"r{number}" if value.shape[axis] > 1 else "0"
        kind = value.kind if how != "sum" or value.kind is not Kind.BOOL else Kind.INT
        kind = Kind.FLOAT if mean else kind
        divisor = math.prod(extents) if mean else 1
        return self._add(Stage(self._name(), kept, kind, value.at(indices), extents, how, divisor))

    def _name(self) -> str:
        return f"t{len(self.found)}"

    def _add(self, stage: Stage) -> Value:
        self.found.append(stage)
        return buffer(stage.name, stage.shape, stage.kind)


def loop_indices(shape: Sequence[int]) -> list[str]:
    """Return the names of loop variables; an axis of one element has none."""
    return [f"i{axis}" if extent > 1 else "0" for axis, extent in enumerate(shape)]


def flat(indices: Indices, shape: Sequence[int]) -> str:
    """Return the place of an element in a dense buffer."""
    terms, step = [], 1
    for index, extent in zip(reversed(indices), reversed(shape), strict=True):
        if index != "0" and extent > 1:
            terms.append(_times(index, step))
        step *= extent
    return " + ".join(reversed(terms)) or "0"


def _times(index: str, step: int) -> str:
    if step == 1:
        return index
    return f"{index if index.isidentifier() else f'({index})'} * {step}"


def buffer(name: str, shape: tuple[int, ...], kind: Kind, load: str = "{}") -> Value:
    """Return the elements of a dense buffer; `load` turns one into its C++ type."""
    return Value(shape, kind, lambda at: load.format(f"{name}[{flat(at, shape)}]"), is_cheap=True)


def number(value: bool | int | float) -> Value:
    """Return a number as a value without axes."""
    if isinstance(value, bool):
        return Value((), Kind.BOOL, lambda _: "true" if value else "false", is_cheap=True)
    if isinstance(value, int):
        return Value((), Kind.INT, lambda _: f"int64_t({value})", is_cheap=True)
    return Value((), Kind.FLOAT, lambda _: float_text(value), is_cheap=True)


def float_text(value: float) -> str:
    """Return a float as C++ writes it."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    text = repr(float(value))
    return f"{text}f" if value >= 0 else f"({text}f)"


def as_kind(value: Value, kind: Kind) -> Value:
    """Return a value in another C++ type."""
    if value.kind is kind:
        return value
    if kind is Kind.BOOL:
        return Value(value.shape, kind, lambda at: f"({value.at(at)} != 0)", value.is_cheap)
    return Value(value.shape, kind, lambda at: f"static_cast<{kind}>({value.at(at)})", value.is_cheap)


def broadcast(value: Value, shape: tuple[int, ...]) -> Value:
    """Return a value stretched to a shape, as torch does it."""
    if value.shape == shape:
        return value
    lead = len(shape) - len(value.shape)

    def at(indices: Indices) -> str:
        own = indices[lead:]
        return value.at(
            ["0" if extent == 1 else index for index, extent in zip(own, value.shape, strict=True)]
        )

    return Value(shape, value.kind, at, value.is_cheap)


def permuted(value: Value, order: Sequence[int]) -> Value:
    """Return a value with its axes in another order."""
    shape = tuple(value.shape[axis] for axis in order)

    def at(indices: Indices) -> str:
        own = ["0"] * len(order)
        for index, axis in zip(indices, order, strict=True):
            own[axis] = index
        return value.at(own)

    return Value(shape, value.kind, at, value.is_cheap)


def sliced(value: Value, axis: int, start: int, extent: int, step: int = 1) -> Value:
    """Return a part of a value along an axis."""
    shape = (*value.shape[:axis], extent, *value.shape[axis + 1 :])

    def at(indices: Indices) -> str:
        own = list(indices)
        moved = _times(own[axis], step) if own[axis] != "0" else ""
        own[axis] = " + ".join(filter(None, (moved, str(start) if start else ""))) or "0"
        return value.at([f"({one})" if "+" in one else one for one in own])

    return Value(shape, value.kind, at, value.is_cheap)


def reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """Return the same elements under another shape: axes that stay are passed through, others are taken apart."""
    groups = _groups(value.shape, shape)

    def at(indices: Indices) -> str:
        own: list[str] = []
        for old, new in groups:
            names = [indices[axis] for axis in new]
            if [value.shape[axis] for axis in old] == [shape[axis] for axis in new]:
                own += names
                continue
            place = flat(names, [shape[axis] for axis in new])
            own += _apart(place, [value.shape[axis] for axis in old])
        return value.at(own)

    return Value(shape, value.kind, at, value.is_cheap)


def _apart(place: str, extents: Sequence[int]) -> list[str]:
    """Return the indices of a flat place."""
    if [extent for extent in extents if extent > 1] == [math.prod(extents)]:
        return [
            f"({place})" if extent > 1 and " " in place else place if extent > 1 else "0"
            for extent in extents
        ]
    found, step = [], math.prod(extents)
    for number, extent in enumerate(extents):
        step //= extent
        text = f"({place})" if step == 1 else f"(({place}) / {step})"
        found.append("0" if extent == 1 else text if not number else f"({text} % {extent})")
    return found


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the axes of two shapes in the smallest groups of equal products."""
    groups, i, j = [], 0, 0
    while i < len(old) or j < len(new):
        left, right = ([i] if i < len(old) else []), ([j] if j < len(new) else [])
        i, j = i + len(left), j + len(right)
        while math.prod(old[a] for a in left) != math.prod(new[a] for a in right):
            if math.prod(old[a] for a in left) < math.prod(new[a] for a in right):
                left.append(i)
                i += 1
            else:
                right.append(j)
                j += 1
        groups.append((left, right))
    return groups

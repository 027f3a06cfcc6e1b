"""Values of a graph as expressions of their indices, and the stages in which they are computed.

A value says what its element at some indices is. Views only change the indices, pointwise operations only put
expressions together; a reduction, and what is used more than once, gets a stage: loops that fill a buffer.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kernelwright.codegen.indices import Index, variable

INTEGER = re.compile(r"int64_t\((-?\d{1,7})\)")
"""A whole number that a float holds exactly."""
Indices = Sequence[Index]
At = Callable[[Indices], "Expression"]


class Kind(StrEnum):
    """C++ type of a value."""

    FLOAT = "float"
    INT = "int64_t"
    BOOL = "bool"


class NotPlain(ValueError):
    """What cannot be written as plain loops, in words."""


@dataclass(frozen=True)
class Read:
    """One element of a buffer."""

    name: str
    index: Index

    @property
    def names(self) -> frozenset[str]:
        """Return the loop variables it depends on."""
        return self.index.names

    def put(self, values: Mapping[str, Index]) -> "Read":
        """Return it with loop variables replaced."""
        return Read(self.name, self.index.put(values))

    def renamed(self, old: str, new: str) -> "Read":
        """Return it with another buffer in the place of one."""
        return Read(new if self.name == old else self.name, self.index.renamed(old, new))


@dataclass(frozen=True)
class Counted:
    """An index as an integer."""

    index: Index

    @property
    def names(self) -> frozenset[str]:
        """Return the loop variables it depends on."""
        return self.index.names

    def put(self, values: Mapping[str, Index]) -> "Counted":
        """Return it with loop variables replaced."""
        return Counted(self.index.put(values))

    def renamed(self, old: str, new: str) -> "Counted":
        """Return it with another buffer in the place of one."""
        return Counted(self.index.renamed(old, new))


@dataclass(frozen=True)
class Made:
    """A text of C++ around other expressions."""

    text: str
    given: tuple["Expression", ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Return the loop variables it depends on."""
        return frozenset(name for one in self.given for name in one.names)

    def put(self, values: Mapping[str, Index]) -> "Made":
        """Return it with loop variables replaced."""
        return Made(self.text, tuple(one.put(values) for one in self.given))

    def renamed(self, old: str, new: str) -> "Made":
        """Return it with another buffer in the place of one."""
        return Made(self.text, tuple(one.renamed(old, new) for one in self.given))


@dataclass(frozen=True)
class Pieced:
    """One expression while an index is below a bound, another one from there on."""

    index: Index
    below: int
    first: "Expression"
    then: "Expression"

    @property
    def names(self) -> frozenset[str]:
        """Return the loop variables it depends on."""
        return self.index.names | self.first.names | self.then.names

    def put(self, values: Mapping[str, Index]) -> "Expression":
        """Return it with loop variables replaced; the one expression if only one is left."""
        index = self.index.put(values)
        if index.most < self.below:
            return self.first.put(values)
        if index.least >= self.below:
            return self.then.put(values)
        return Pieced(index, self.below, self.first.put(values), self.then.put(values))

    def renamed(self, old: str, new: str) -> "Pieced":
        """Return it with another buffer in the place of one."""
        both = self.first.renamed(old, new), self.then.renamed(old, new)
        return Pieced(self.index.renamed(old, new), self.below, *both)


Expression = Read | Counted | Made | Pieced


def parts(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all it is made of, what its indices read included."""
    yield expression
    if isinstance(expression, Made):
        for one in expression.given:
            yield from parts(one)
        return
    for atom, _ in expression.index.terms:
        for inner in _looked_up(atom):
            yield from parts(inner)
    if isinstance(expression, Pieced):
        yield from parts(expression.first)
        yield from parts(expression.then)


def _looked_up(atom: object) -> Iterator[Expression]:
    if (expression := getattr(atom, "expression", None)) is not None:
        yield expression
    index = getattr(atom, "index", None)
    for inner, _ in index.terms if isinstance(index, Index) else ():
        yield from _looked_up(inner)


@dataclass(frozen=True)
class Value:
    """A tensor as an expression of its indices."""

    shape: tuple[int, ...]
    kind: Kind
    at: At
    is_cheap: bool = False
    """Whether computing it twice costs no more than reading it twice."""

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
    expression: Expression
    """Of the variables i0, i1 ... of its shape, and r0, r1 ... of what is summed up."""
    reduced: tuple[int, ...] = ()
    """Extents of what is summed up."""
    how: str = ""
    """`sum`, `max` or `min`."""
    divisor: int = 1
    """A sum is divided by this at the end."""

    @property
    def numel(self) -> int:
        """Return the elements it fills."""
        return math.prod(self.shape)

    @property
    def work(self) -> int:
        """Return how often its expression is computed."""
        return self.numel * math.prod(self.reduced)

    @property
    def reads(self) -> list[Read]:
        """Return all elements it reads."""
        return [one for one in parts(self.expression) if isinstance(one, Read)]


@dataclass
class Stages:
    """The stages so far."""

    found: list[Stage] = field(default_factory=list)

    def stored(self, value: Value) -> Value:
        """Return a value that reads a buffer, which a new stage fills; a cheap one as it is."""
        if value.is_cheap:
            return value
        expression = value.at(loop_indices(value.shape))
        return self._add(Stage(self._name(), value.shape, value.kind, expression))

    def reduced(self, value: Value, axes: Sequence[int], how: str, *, mean: bool = False) -> Value:
        """Return a value with some axes summed up to extent one."""
        axes = sorted(axis % len(value.shape) for axis in axes) if value.shape else []
        kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(value.shape))
        extents = tuple(value.shape[axis] for axis in axes)
        if 0 in extents:
            raise NotPlain("it reduces over nothing")
        indices = list(loop_indices(kept))
        for number, axis in enumerate(axes):
            indices[axis] = variable(f"r{number}", value.shape[axis])
        kind = value.kind if how != "sum" or value.kind is not Kind.BOOL else Kind.INT
        kind = Kind.FLOAT if mean else kind
        divisor = math.prod(extents) if mean else 1
        return self._add(Stage(self._name(), kept, kind, value.at(indices), extents, how, divisor))

    def _name(self) -> str:
        return f"t{len(self.found)}"

    def _add(self, stage: Stage) -> Value:
        same = next((one for one in self.found if replace(one, name=stage.name) == stage), None)
        if same is None:
            self.found.append(stage)
        return buffer((same or stage).name, stage.shape, stage.kind)


def loop_indices(shape: Sequence[int]) -> list[Index]:
    """Return the loop variables of a shape; an axis of one element has none."""
    return [variable(f"i{axis}", extent) for axis, extent in enumerate(shape)]


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense buffer."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def flat(indices: Indices, strides: Sequence[int]) -> Index:
    """Return the place of an element in a buffer."""
    place = Index()
    for index, step in zip(indices, strides, strict=True):
        place = place + index * step
    return place


def buffer(
    name: str, shape: tuple[int, ...], kind: Kind, load: str = "", strides: Sequence[int] | None = None
) -> Value:
    """Return the elements of a buffer; `load` turns one into its C++ type."""
    steps = dense(shape) if strides is None else tuple(strides)

    def at(indices: Indices) -> Expression:
        read = Read(name, flat(indices, steps))
        return Made(load, (read,)) if load else read

    return Value(shape, kind, at, is_cheap=True)


def number(value: bool | int | float) -> Value:
    """Return a number as a value without axes."""
    if isinstance(value, bool):
        return Value((), Kind.BOOL, lambda _: Made("true" if value else "false"), is_cheap=True)
    if isinstance(value, int):
        return Value((), Kind.INT, lambda _: Made(f"int64_t({value})"), is_cheap=True)
    return Value((), Kind.FLOAT, lambda _: Made(float_text(value)), is_cheap=True)


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
    text = "({0} != 0)" if kind is Kind.BOOL else f"static_cast<{kind}>({{0}})"

    def at(indices: Indices) -> Expression:
        inner = value.at(indices)
        is_number = isinstance(inner, Made) and INTEGER.fullmatch(inner.text) and kind is Kind.FLOAT
        return Made(INTEGER.sub(r"(\1.0f)", inner.text)) if is_number else Made(text, (inner,))  # type: ignore[union-attr]

    return Value(value.shape, kind, at, value.is_cheap)


def broadcast(value: Value, shape: tuple[int, ...]) -> Value:
    """Return a value stretched to a shape, as torch does it."""
    if value.shape == shape:
        return value
    lead = len(shape) - len(value.shape)

    def at(indices: Indices) -> Expression:
        own = zip(indices[lead:], value.shape, strict=True)
        return value.at([Index() if extent == 1 else index for index, extent in own])

    return Value(shape, value.kind, at, value.is_cheap)


def permuted(value: Value, order: Sequence[int]) -> Value:
    """Return a value with its axes in another order."""
    shape = tuple(value.shape[axis] for axis in order)

    def at(indices: Indices) -> Expression:
        own = [Index()] * len(order)
        for index, axis in zip(indices, order, strict=True):
            own[axis] = index
        return value.at(own)

    return Value(shape, value.kind, at, value.is_cheap)


def sliced(value: Value, axis: int, start: int, extent: int, step: int = 1) -> Value:
    """Return a part of a value along an axis."""
    shape = (*value.shape[:axis], extent, *value.shape[axis + 1 :])

    def at(indices: Indices) -> Expression:
        own = list(indices)
        own[axis] = own[axis] * step + start
        return value.at(own)

    return Value(shape, value.kind, at, value.is_cheap)


def reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """Return the same elements under another shape."""
    if value.shape == shape:
        return value
    steps = dense(shape)

    def at(indices: Indices) -> Expression:
        return value.at(apart(flat(indices, steps), value.shape))

    return Value(shape, value.kind, at, value.is_cheap)


def apart(place: Index, shape: Sequence[int]) -> list[Index]:
    """Return the indices of a place in a dense buffer."""
    steps = dense(shape)
    return [
        Index() if extent == 1 else (place // step) % extent if axis else place // step
        for axis, (extent, step) in enumerate(zip(shape, steps, strict=True))
    ]

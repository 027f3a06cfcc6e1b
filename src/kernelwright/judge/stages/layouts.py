"""Where tensors of a case may lie: at odd addresses, in strides, as one row for all."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kernelwright.core.case import Case, Layout, TensorSpec

OFFSETS = (1, 2, 4, 8)
MOST_PADDING = 9


class LaidOut(NamedTuple):
    """A case in another layout, and what was done to it."""

    kind: Layout
    what: str
    case: Case


def laid_out(case: Case, rng: random.Random) -> Iterator[LaidOut]:
    """Yield the case in other layouts, with what was done to it."""
    everything = tuple(spec.name for spec in (*case.inputs, *case.outputs))
    inputs = tuple(spec.name for spec in case.inputs)
    for offset in OFFSETS:
        moved = _changed(case, everything, partial(_moved, offset=offset))
        yield LaidOut(Layout.OFFSET, f"every tensor offset by {offset}", moved)
    offset = rng.choice(OFFSETS)
    moved = _changed(case, inputs, partial(_moved, offset=offset))
    yield LaidOut(Layout.OFFSET, f"inputs offset by {offset}, outputs not", moved)
    yield outputs_moved(case, rng)
    mixed = _changed(case, everything, lambda spec: _moved(spec, rng.choice((0, *OFFSETS))))
    yield LaidOut(Layout.OFFSET, "offsets that differ", mixed)
    padding = rng.randrange(1, MOST_PADDING)
    strided = _changed(case, inputs, partial(row_strided, padding=padding))
    yield LaidOut(Layout.ROW_STRIDED, f"rows {padding} elements apart", strided)
    for name in inputs:
        yield LaidOut(Layout.TRANSPOSED, f"{name!r} transposed", _changed(case, (name,), transposed))
        repeated = _changed(case, (name,), broadcast)
        if repeated.hash != case.hash:
            yield LaidOut(Layout.BROADCAST, f"{name!r} one row for all", repeated)


def outputs_moved(case: Case, rng: random.Random) -> LaidOut:
    """Return the case with its outputs alone at odd addresses: a kernel that reads widely may then not write so."""
    offset, outputs = rng.choice(OFFSETS), tuple(spec.name for spec in case.outputs)
    moved = _changed(case, outputs, partial(_moved, offset=offset))
    return LaidOut(Layout.OFFSET, f"outputs offset by {offset}, inputs not", moved)


def _changed(case: Case, names: tuple[str, ...], change: Callable[[TensorSpec], TensorSpec]) -> Case:
    """Return the case with some of its tensors changed."""
    inputs, outputs = (
        tuple(change(spec) if spec.name in names else spec for spec in specs)
        for specs in (case.inputs, case.outputs)
    )
    return case.model_copy(update={"inputs": inputs, "outputs": outputs})


def _moved(spec: TensorSpec, offset: int) -> TensorSpec:
    return spec.model_copy(update={"offset": offset})


def row_strided(spec: TensorSpec, padding: int) -> TensorSpec:
    """Return the tensor as a slice of a wider one; of four axes the middle two lie exchanged, as heads usually do."""
    if len(spec.shape) < 2:
        return spec
    order = [0, 2, 1, 3] if len(spec.shape) == 4 else list(range(len(spec.shape)))
    return _in_order(spec, order, padding)


def transposed(spec: TensorSpec) -> TensorSpec:
    """Return the tensor with its last two axes exchanged in memory; a vector gets a gap between its elements."""
    if len(spec.shape) < 2:
        return spec.model_copy(update={"strides": tuple(2 for _ in spec.shape)})
    order = list(range(len(spec.shape)))
    return _in_order(spec, [*order[:-2], order[-1], order[-2]], 0)


def broadcast(spec: TensorSpec) -> TensorSpec:
    """Return the tensor with stride zero on its first axis longer than one, the last axis left alone."""
    strides = list(spec.element_strides)
    axis = next((axis for axis, extent in enumerate(spec.shape[:-1]) if extent > 1), None)
    if axis is None:
        return spec
    strides[axis] = 0
    return spec.model_copy(update={"strides": tuple(strides)})


def _in_order(spec: TensorSpec, order: list[int], padding: int) -> TensorSpec:
    """Return the tensor with its axes in that order in memory, outermost first, and a wider innermost axis."""
    strides, step = [0] * len(order), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(1, spec.shape[axis]) + (padding if axis == order[-1] else 0)
    return spec.model_copy(update={"strides": tuple(strides)})

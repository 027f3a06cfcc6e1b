"""Stages on where tensors lie: odd addresses, strides, broadcast rows; and inputs that share their storage."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

from kernelwright.core.case import Case, Distribution, Layout, TensorSpec
from kernelwright.judge.stages.bench import SMOKE_ELEMENTS, SWEEP_ELEMENTS, Bench, Found, input_elements
from kernelwright.judge.stages.checks import Inputs, Trial, run_trials

OFFSETS = (1, 2, 4, 8)
MOST_PADDING = 9


def layout(bench: Bench) -> Found:
    """Run the problem's case and a hidden one in every layout; those the op requires may not be declined."""
    trials = []
    cases = () if bench.has_fixed_cases else (bench.probed_case(), bench.hidden_case(SMOKE_ELEMENTS))
    own = min(bench.problem.cases, key=input_elements)
    is_own_left = (
        not bench.has_fixed_cases and own not in cases and input_elements(own) <= SWEEP_ELEMENTS[bench.is_cpu]
    )
    for case in (*cases, own) if is_own_left else cases:
        ways = list(laid_out(case, bench.rng))
        # A big one in some of them, the required strides always: a kernel may have a way of its own for that size.
        if case is own and is_own_left:
            strided = [way for way in ways if way[0] is Layout.ROW_STRIDED]
            ways = [*strided, *bench.rng.sample(ways, 2)]
        for kind, what, changed in ways:
            draw = partial(bench.op.make_inputs, changed, Distribution.SIGNED)
            may_decline = kind not in bench.op.REQUIRED_LAYOUTS
            trials.append(Trial(changed, draw, bench.seed, what=what, may_decline=may_decline))
    return run_trials(bench, trials)


def laid_out(case: Case, rng: random.Random) -> Iterator[tuple[Layout, str, Case]]:
    """Yield the case in other layouts, with what was done to it."""
    everything = tuple(spec.name for spec in (*case.inputs, *case.outputs))
    inputs = tuple(spec.name for spec in case.inputs)
    for offset in OFFSETS:
        moved = _changed(case, everything, partial(_moved, offset=offset))
        yield Layout.OFFSET, f"every tensor offset by {offset}", moved
    mixed = _changed(case, everything, lambda spec: _moved(spec, rng.choice((0, *OFFSETS))))
    yield Layout.OFFSET, "offsets that differ", mixed
    padding = rng.randrange(1, MOST_PADDING)
    strided = _changed(case, inputs, partial(row_strided, padding=padding))
    yield Layout.ROW_STRIDED, f"rows {padding} elements apart", strided
    for name in inputs:
        yield Layout.TRANSPOSED, f"{name!r} transposed", _changed(case, (name,), transposed)
        repeated = _changed(case, (name,), broadcast)
        if repeated.hash != case.hash:
            yield Layout.BROADCAST, f"{name!r} one row for all", repeated


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


def aliasing(bench: Bench) -> Found:
    """Run the problem's case and a hidden one with inputs that share their storage: two by two, and all at once."""
    trials = []
    cases = () if bench.has_fixed_cases else (bench.probed_case(), bench.hidden_case(SMOKE_ELEMENTS))
    for case in cases:
        for what, shared in overlaps(case):
            trials.append(
                Trial(case, partial(_tied, bench, case, shared), bench.seed, what=what, shared=shared)
            )
    return run_trials(bench, trials) if trials else (0, None)


def overlaps(case: Case) -> list[tuple[str, dict[str, str]]]:
    """Return which inputs can lie in which other one's storage: a smaller one of the same type at its start."""
    by_size = sorted(case.inputs, key=lambda spec: spec.numel, reverse=True)
    pairs = [
        (large.name, small.name)
        for large, small in combinations(by_size, 2)
        if large.dtype is small.dtype and small.numel
    ]
    found = [(f"{small!r} lies in {large!r}", {small: large}) for large, small in pairs]
    if len(found) > 1:
        largest = by_size[0].name
        found.append(("all inputs lie in one", {small: large for large, small in pairs if large == largest}))
    return found


def _tied(bench: Bench, case: Case, shared: dict[str, str], seed: int) -> Inputs:
    """Return inputs of which those that share a storage agree."""
    inputs = bench.op.make_inputs(case, Distribution.SIGNED, seed)
    for small, large in shared.items():
        shape = inputs[small].shape
        inputs[small] = inputs[large].reshape(-1)[: shape.numel()].reshape(shape)
    return inputs

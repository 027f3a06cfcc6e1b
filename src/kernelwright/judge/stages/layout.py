"""Stages on where tensors lie: odd addresses, strides, broadcast rows; and inputs that share their storage."""

from functools import partial
from itertools import combinations

from kernelwright.core.case import Case, Distribution
from kernelwright.judge.stages.bench import SMOKE_ELEMENTS, Bench, Found
from kernelwright.judge.stages.checks import Inputs, Trial, run_trials


def layout(bench: Bench) -> Found:
    """Run the problem's case and a hidden one in every layout; those the op requires may not be declined."""
    trials = []
    for kind, what, case in bench.layouts:
        draw = partial(bench.op.make_inputs, case, Distribution.SIGNED)
        may_decline = kind not in bench.op.REQUIRED_LAYOUTS
        trials.append(Trial(case, draw, bench.seed, what=what, may_decline=may_decline))
    return run_trials(bench, trials)


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
    """Return inputs of which those that share a storage agree: the values are those of the smaller one.

    They may be drawn with more care: a bias that is zero where a layernorm's row has its mean leaves nothing but the
    rounding of that mean.
    """
    inputs = bench.op.make_inputs(case, Distribution.SIGNED, seed)
    for small, large in shared.items():
        whole, part = inputs[large].clone(), inputs[small].reshape(-1)
        whole.view(-1)[: part.numel()] = part
        inputs[large] = whole
    for small, large in shared.items():
        shape = inputs[small].shape
        inputs[small] = inputs[large].view(-1)[: shape.numel()].reshape(shape)
    return inputs

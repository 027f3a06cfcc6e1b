"""Inputs of timed calls: in range, different every time, and no answer to them can be made from earlier ones."""

import random

import pytest
import torch

from kernelwright.core.case import Case, DType
from kernelwright.judge.fresh import HARD, Mixtures
from kernelwright.judge.passes import dealt, most_apart
from kernelwright.ops import cross_entropy, layernorm, matmul, softmax

CASE = matmul.case({"m": 32, "n": 16, "k": 24}, DType.FP32)
pytestmark = pytest.mark.usefixtures("one_thread")


def filled(mixtures: Mixtures, case: Case, name: str) -> torch.Tensor:
    spec = next(one for one in case.inputs if one.name == name)
    target = torch.empty(spec.shape, dtype=torch.int64 if spec.dtype is DType.INT64 else torch.float32)
    mixtures.fill(name, target)
    return target


def test_no_input_is_a_multiple_or_a_turn_of_another() -> None:
    mixtures = Mixtures(CASE, "cpu", random.Random(1))
    drawn = torch.stack([filled(mixtures, CASE, "a").view(-1) for _ in range(24)]).double()
    unit = drawn / drawn.norm(dim=1, keepdim=True)
    # A multiple has the cosine one; of all turns at once the largest is found by the spectrum.
    spectrum = torch.fft.fft(unit)
    turns = torch.fft.ifft(spectrum[:, None] * spectrum.conj()[None]).real.abs().amax(-1)
    turns.fill_diagonal_(0)
    assert turns.max() < 0.999, "one input is another one, turned or scaled"


def test_sums_of_one_input_do_not_follow_from_another_by_a_factor() -> None:
    mixtures = Mixtures(CASE, "cpu", random.Random(2))
    first, second = (filled(mixtures, CASE, "a").double().sum(1) for _ in range(2))
    ratios = first / second
    assert ratios.std() > 0.1 * ratios.abs().mean()


def test_a_mixture_is_not_two_turned_draws_added_up() -> None:
    """Else the draws come out of a few mixtures by correlation, and sums are answered from tables of them."""
    mixtures = Mixtures(CASE, "cpu", random.Random(4))
    count = CASE.inputs[0].numel
    turned = torch.stack(
        [base[:count].roll(-n) for base in mixtures.bases["a"] for n in range(count)]
    ).double()
    for _ in range(4):
        mixed = filled(mixtures, CASE, "a").view(-1).double()
        likeness = (turned @ mixed).abs() / turned.norm(dim=1)
        parts = turned[likeness.topk(2).indices].T
        left = mixed - parts @ torch.linalg.lstsq(parts, mixed[:, None]).solution[:, 0]
        assert left.norm() > 0.1 * mixed.norm()


def test_whole_numbers_stay_what_the_op_draws() -> None:
    case = cross_entropy.case({"rows": 4096, "vocab": 100}, DType.FP32)
    name = next(spec.name for spec in case.inputs if spec.dtype is DType.INT64)
    mixtures = Mixtures(case, "cpu", random.Random(3))
    allowed = {int(value) for base in mixtures.bases[name] for value in base}
    found = [filled(mixtures, case, name) for _ in range(8)]
    assert {int(value) for one in found for value in one} <= allowed
    assert len({tuple(one.tolist()) for one in found}) == len(found)


def test_what_is_never_near_zero_stays_so() -> None:
    """A bias of almost zero made the scale of an element almost zero, and honest kernels were refused."""
    case = layernorm.case({"rows": 8, "cols": 512}, DType.FP32)
    mixtures = Mixtures(case, "cpu", random.Random(6))
    least = min(float(base.abs().min()) for base in mixtures.bases["bias"])
    found = torch.stack([filled(mixtures, case, "bias") for _ in range(20)])
    assert found.abs().min() >= least * (1 - 1e-6)
    assert 0.3 < (found > 0).double().mean() < 0.7
    assert len({tuple(one.tolist()) for one in found}) == 20
    assert filled(mixtures, case, "x").abs().min() < least / 10, "what goes through zero still does"


@pytest.mark.parametrize("has_infinities", [False, True])
def test_the_call_with_missing_work_is_the_one_that_is_looked_at(has_infinities: bool) -> None:
    spec = CASE.outputs[0]
    right = torch.randn(40, spec.numel)
    if has_infinities:
        right[torch.rand(right.shape) < 0.03] = -torch.inf
        right[torch.rand(right.shape) < 0.03] = torch.nan
    wrong = right + 1e-6 * torch.randn(40, spec.numel)
    wrong[17, : spec.numel // 4] = 0
    arms = [lambda _, places, one=one: one.gather(1, places) for one in (right, wrong)]
    assert {most_apart(arms, CASE.outputs, 40, torch.Generator().manual_seed(n)) for n in range(8)} == {17}


def test_one_call_of_a_pass_is_hard_and_which_and_how_changes() -> None:
    case = softmax.case({"rows": 8, "cols": 64}, DType.FP32)
    mixtures = Mixtures(case, "cpu", random.Random(5))
    hard = []
    for _ in range(40):
        calls = [{"x": torch.zeros(8, 64)} for _ in range(6)]
        mixtures.draw_hard()
        hard.append(mixtures.harden(calls, (5, 0, 2, 3)))
        changed = [number for number, call in enumerate(calls) if call["x"].any()]
        assert changed == [hard[-1].call]
    assert {one.call for one in hard} == {0, 2, 3, 5}, "only calls that are made"
    assert {one.kind for one in hard} == set(HARD)
    # At least one kind is beyond what an exponential without its maximum stands.
    drawn = [softmax.make_inputs(case, kind, 1)["x"] for kind in HARD]
    assert any(torch.exp(one).isinf().any() for one in drawn)


def test_which_calls_are_made_and_in_which_order_changes() -> None:
    rng = random.Random(7)
    passes = [dealt(12, 3, rng) for _ in range(60)]
    assert all(sorted((*one.made, *one.spared)) == list(range(12)) and len(one.spared) == 3 for one in passes)
    assert {number for one in passes for number in one.spared} == set(range(12))
    assert len({one.made for one in passes}) == 60
    assert dealt(3, 0, rng).spared == ()


def test_the_call_with_hard_inputs_is_not_the_one_arms_disagree_on() -> None:
    outputs = softmax.case({"rows": 8, "cols": 64}, DType.FP32).outputs
    generator = torch.Generator().manual_seed(1)
    first = torch.zeros(4, 512)
    second = first.clone()
    second[2] = 1.0
    second[1] = 0.5
    arms = [lambda _, places, of=of: torch.gather(of, 1, places) for of in (first + 1, second + 1)]
    assert most_apart(arms, outputs, 4, generator) == 2
    assert most_apart(arms, outputs, 4, generator, hard=2) == 1

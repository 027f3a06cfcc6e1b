"""What a model answers, taken apart and compared: structure, accuracy, whole numbers, other sizes, state."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernelwright.model.arguments import Arguments, InputSet
from kernelwright.model.outputs import FACTOR, Comparison, allowed, leaves
from kernelwright.model.precise import Precise, State
from kernelwright.model.sizes import other_sizes

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    """As transformers answers."""

    logits: Tensor
    cache: Any = None


class Cache:
    """An object of the model's own."""

    def __init__(self, keys: Tensor) -> None:
        self.layers = [keys]


def worst(exact: Any, eager: Any, compiled: Any, spliced: Any) -> Any:
    """Return the verdict on one arm's answer."""
    found = Comparison(1)
    found.add(leaves(exact), [leaves(eager), leaves(compiled)], [leaves(spliced)])
    return found.worst(0)


def test_tensors_are_found_wherever_they_hide() -> None:
    x = torch.ones(2)
    answer = {"a": (x, None), "b": Pair(x, 3), "c": Output(x, Cache(x))}
    assert set(leaves(answer)) == {
        *("['a'][0]", "['a'][1]", "['b'].left", "['b'].right", "['c'].logits", "['c'].cache.layers[0]"),
    }
    assert set(leaves(x)) == {"output"}


def test_as_accurate_as_the_framework_holds_and_three_times_its_error_does_not() -> None:
    torch.manual_seed(0)
    exact = torch.randn(64, 64, dtype=torch.float64)
    noise = torch.randn(4, 64, 64) * 1e-6
    eager, compiled, near, far = (exact.float() + one for one in (*noise[:3], 3 * noise[3]))
    assert worst(exact, eager, compiled, near).problem == ""
    found = worst(exact, eager, compiled, far)
    assert found.ratio == pytest.approx(3, rel=0.1)
    assert "times the framework's own; 1.50 is allowed" in found.problem


def test_one_wrong_element_in_a_million_is_found_though_the_rms_hides_it() -> None:
    torch.manual_seed(0)
    exact = torch.randn(1000, 1000, dtype=torch.float64)
    noise = torch.randn(3, 1000, 1000) * 1e-2
    eager, compiled, spliced = (exact.bfloat16() + one.bfloat16() for one in noise)
    assert worst(exact, eager, compiled, spliced).problem == ""
    spliced[3, 4] += 2
    found = worst(exact, eager, compiled, spliced)
    assert found.ratio < FACTOR
    assert "one element is off" in found.problem


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_where_the_original_is_does_not_hold(bad: float) -> None:
    exact = torch.ones(8)
    spliced = exact.clone()
    spliced[3] = bad
    assert worst(exact.double(), exact, exact, spliced).problem == "not finite where the original is"
    masked = torch.tensor([1.0, float("-inf")])
    assert worst(masked.double(), masked, masked, masked).problem == ""


def test_whole_numbers_must_be_equal_wherever_the_framework_agrees_with_itself() -> None:
    eager, compiled = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    assert worst(eager, eager, compiled, torch.tensor([1, 2, 4])).problem == ""
    assert worst(eager, eager, compiled, torch.tensor([1, 5, 3])).problem == "1 of 3 whole numbers differ"


@pytest.mark.parametrize(
    ("spliced", "words"),
    [
        ({"a": torch.ones(3), "b": None}, "3 float32 instead of 2 float32"),
        ({"a": torch.ones(2).double(), "b": None}, "2 float64 instead of 2 float32"),
        ({"a": torch.ones(2)}, "missing"),
        ({"a": torch.ones(2), "b": None, "c": 1}, "not in the original"),
        ({"a": torch.ones(2), "b": 1}, "1 instead of None"),
    ],
)
def test_another_structure_shape_or_type_does_not_hold(spliced: dict[str, Any], words: str) -> None:
    original = {"a": torch.ones(2), "b": None}
    assert worst(original, original, original, spliced).problem == words
    assert worst(original, original, original, original).problem == ""


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(0, 10_000))
def test_a_scalar_as_noisy_as_the_frameworks_holds_by_luck_or_not(count: int, seed: int) -> None:
    torch.manual_seed(seed)
    found = Comparison(1)
    for _ in range(3):
        exact = torch.full((count,), 5.0, dtype=torch.float64)
        eager, compiled, spliced = (exact.float() + torch.randn(count) * 1e-4 for _ in range(3))
        found.add(leaves(exact), [leaves(eager), leaves(compiled)], [leaves(spliced)])
    one = found.worst(0)
    assert one.allowed == allowed(3 * count) > FACTOR
    assert one.ratio < 40


def test_exact_outputs_leave_room_for_one_rounding() -> None:
    exact = torch.linspace(1, 2, 64, dtype=torch.float64).float()
    rounded = exact * (1 + torch.finfo(torch.float32).eps / 2)
    assert worst(exact.double(), exact, exact, rounded).problem == ""
    assert worst(exact.double(), exact, exact, exact * 1.00001).problem != ""


class Casting(nn.Module):
    """Computes its norm in fp32 whatever it is given, and counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.copy_(x.float().sum(0))
        return (x.to(torch.float32) * (1 / 3)).to(x.dtype)


def test_the_precise_copy_is_precise_inside_its_own_casts_and_starts_from_the_same_state() -> None:
    model, x = Casting(), torch.full((2, 4), 0.1)
    with torch.inference_mode():
        state, precise = State(model), Precise(model)
        for _ in range(2):
            answer, changed = precise.call(Arguments((x,)))
            assert torch.equal(answer, x.double() * (1 / 3))
            assert changed.keys() == {"seen", "calls"}
            assert int(changed["calls"]) == 1
        model(x)
        assert int(state.changed()["calls"]) == 1
        state.restore()
        assert state.changed() == {}


class Two(nn.Module):
    def forward(self, tokens: Tensor, mask: Tensor | None = None, start: Tensor | None = None) -> Tensor:
        return tokens


def test_the_batch_is_doubled_with_other_values_and_named_axes_are_halved() -> None:
    def make(seed: int) -> Arguments:
        return Arguments((torch.full((1, 8), seed),), {"mask": torch.ones(1, 8), "start": torch.tensor(3)})

    one = InputSet("prefill", 1.0, make, {"tokens": {1: "seq"}, "mask": {1: "seq"}})
    sizes, note = other_sizes(Two(), one)
    assert ([size.name for size in sizes], note) == (["prefill, seq 4", "prefill, batch 2"], "")
    shapes = [[tuple(tensor.shape) for tensor in size.make(5).tensors()] for size in sizes]
    assert shapes == [[(1, 4), (1, 4), ()], [(2, 8), (2, 8), ()]]
    first, second = sizes[1].make(5).args[0]
    assert (int(first[0]), int(second[0]) != 5) == (5, True)


def test_tensors_that_share_no_first_axis_are_said_to_be_left_as_they_are() -> None:
    one = InputSet("odd", 1.0, lambda _: Arguments((torch.ones(2, 3), torch.ones(5))))
    assert other_sizes(Two(), one) == (
        [],
        "set 'odd': its tensors share no first axis, so the batch was not varied",
    )

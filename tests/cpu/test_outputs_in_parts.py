"""Large outputs are judged part by part: the verdict is the one that the whole of them would get."""

import math
from collections.abc import Callable

import pytest
import torch

from kernelwright.judge import outputs
from kernelwright.judge.error_budget import Depth, Verdict, check_whole
from kernelwright.judge.outputs import LARGE, PART, Measured, check_output

Spoil = Callable[[torch.Tensor], torch.Tensor]
SHAPES = [(LARGE + 3 * PART // 2,), (1100, 1024), (7, 3, 60_000), (2, 700_000), (3, 2 * PART + 5, 2)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def one_wrong(values: torch.Tensor) -> torch.Tensor:
    values.view(-1)[-2] += 1e-1
    return values


def one_missing(values: torch.Tensor) -> torch.Tensor:
    values.view(-1)[values.numel() // 2] = math.nan
    return values


def a_tail(values: torch.Tensor) -> torch.Tensor:
    values.view(-1)[::600] *= 1 + 40 * torch.finfo(values.dtype).eps
    return values


def outward(values: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(values.float(), 2 * values.float()).mul_(1 + 3e-7).to(values.dtype)


SPOILT: list[Spoil] = [one_wrong, one_missing, a_tail, outward, torch.zeros_like, torch.round]


def answer(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return an answer in float64, the framework's with a noise of its own, and the scale of a sum behind it."""
    generator = torch.Generator().manual_seed(len(shape))
    exact = torch.randn(shape, generator=generator, dtype=torch.float64)
    scale = exact.abs() + 4
    noise = 6e-8 * scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    return exact, (exact + noise).to(dtype), scale


def honest(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    return (exact + 5e-8 * (exact.abs() + 4) * noise).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_right_output_passes_in_parts_as_it_does_whole(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    exact, framework, scale = answer(shape, dtype)
    values, depth = honest(exact, dtype), Depth(64)
    found = Measured(exact, framework, scale).passes(values, depth)
    whole = check_whole(values, exact, framework, scale, depth)
    assert found is not None and found.passed and whole.passed
    assert 0 < found.worst_ratio <= 1


@pytest.mark.parametrize("spoil", SPOILT)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_a_spoilt_output_gets_the_verdict_of_the_whole(
    shape: tuple[int, ...], dtype: torch.dtype, spoil: Spoil
) -> None:
    exact, framework, scale = answer(shape, dtype)
    values = spoil(honest(exact, dtype))
    for depth in (None, Depth(64)):
        whole = check_whole(values, exact, framework, scale, depth)
        assert (Measured(exact, framework, scale).passes(values, depth) is not None) is whole.passed
        assert check_output(values, exact, framework, scale, depth).reason == whole.reason


def test_every_spoilt_output_is_refused() -> None:
    exact, framework, scale = answer(SHAPES[1], torch.float32)
    refused = [
        not check_output(spoil(honest(exact, torch.float32)), exact, framework, scale).passed
        for spoil in SPOILT
    ]
    assert refused == [True] * len(SPOILT)


def test_where_an_answer_is_infinite_the_whole_is_judged() -> None:
    exact, framework, scale = answer((LARGE,), torch.float32)
    exact[5] = framework[5] = math.inf
    values = honest(exact, torch.float32)
    assert Measured(exact, framework, scale).passes(values, None) is None
    assert check_output(values, exact, framework, scale).passed
    values[5] = 1.0
    assert not check_output(values, exact, framework, scale).passed


def test_what_an_answer_allows_is_measured_once_for_all_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, framework, scale = answer((LARGE,), torch.float32)
    measured, tails = Measured(exact, framework, scale), list[int]()
    tail = outputs.tail
    monkeypatch.setattr(outputs, "tail", lambda errors: tails.append(len(errors)) or tail(errors))

    def judged(values: torch.Tensor) -> Verdict:
        return check_output(values, exact, framework, scale, None, measured)

    assert [judged(honest(exact, torch.float32)).passed for _ in range(3)] == [True] * 3
    assert len(tails) == 2, "of the framework's errors and of what rounding costs, once"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(24, 40), (1100, 1024)])
def test_an_output_with_strides_of_its_own_is_judged_like_a_dense_one(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    exact, framework, scale = answer(shape, dtype)
    values, wrong = honest(exact, dtype), one_wrong(honest(exact, dtype))
    for dense, passed in ((values, True), (wrong, False)):
        turned = dense.t().contiguous().t()
        assert not turned.is_contiguous()
        assert check_output(turned, exact, framework, scale, Depth(64)).passed is passed
        assert check_whole(turned, exact, framework, scale, Depth(64)).passed is passed


def test_nothing_that_is_compared_is_written_to() -> None:
    exact, framework, scale = answer((LARGE,), torch.float64)
    values = torch.zeros_like(exact)
    assert not check_output(values, exact, framework, scale).passed
    assert not values.any() and not torch.equal(framework, exact)


def test_an_output_of_another_type_or_shape_is_not_told_in_parts() -> None:
    exact, framework, scale = answer((1100, 1024), torch.float32)
    for values in (framework.half(), framework.view(1024, 1100)):
        assert Measured(exact, framework, scale).passes(values, None) is None

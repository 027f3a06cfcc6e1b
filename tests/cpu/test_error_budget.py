"""The error budget: what it lets pass and what it must not."""

import math

import pytest
import torch

from kernelwright.judge.error_budget import (
    Depth,
    Growth,
    Verdict,
    check_exact,
    check_growth,
    check_spread,
    growth_at,
)
from kernelwright.judge.outputs import check_output


def judged(
    values: torch.Tensor, exact: torch.Tensor, framework: torch.Tensor, scale: torch.Tensor
) -> Verdict:
    return check_output(values, exact, framework, scale)


@pytest.fixture
def product() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(64, 512, generator=generator), torch.randn(512, 64, generator=generator)


def test_the_framework_passes_its_own_budget(product: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = product
    exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert judged(a @ b, exact, a @ b, scale).passed


def test_lower_precision_posing_as_fp32_misses_by_a_mile(product: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, b = product
    exact, scale = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    rounded = (a.bfloat16().float() @ b.bfloat16().float(), a.half().float() @ b.half().float())
    for values in rounded:
        found = judged(values, exact, a @ b, scale)
        assert (found.passed, found.worst_ratio > 10) == (False, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [512, 50257])
def test_zeros_are_no_answer_to_a_long_sum(dtype: torch.dtype, length: int) -> None:
    x = torch.randn(256, length, generator=torch.Generator().manual_seed(2)).to(dtype)
    exact, scale = x.double().sum(-1), x.double().abs().sum(-1)
    framework = x.float().sum(-1).to(dtype)
    assert judged(framework, exact, framework, scale).passed
    assert not judged(torch.zeros_like(framework), exact, framework, scale).passed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_zeros_are_no_answer_to_a_wide_softmax(dtype: torch.dtype) -> None:
    x = (8 * torch.randn(6, 55506, generator=torch.Generator().manual_seed(3))).to(dtype)
    exact = x.double().softmax(-1)
    framework = x.float().softmax(-1).to(dtype)
    assert judged(framework, exact, framework, exact).passed
    assert not judged(torch.zeros_like(framework), exact, framework, exact).passed


def test_one_wrong_element_among_a_million_is_found() -> None:
    x = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(4))
    exact = x.double() * 3
    values = x * 3
    values[700, 3] += 1e-3
    assert not judged(values, exact, x * 3, exact.abs()).passed


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_element_never_passes_where_float64_is_finite(bad: float) -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(5))
    values = x.clone()
    values[17] = bad
    assert not judged(values, x.double(), x, x.double().abs()).passed


def test_a_finite_element_never_passes_where_float64_is_not() -> None:
    x = torch.tensor([1.0, float("inf"), float("nan")])
    assert judged(x, x.double(), x, x.double().abs()).passed
    assert not judged(torch.tensor([1.0, 2.0, 3.0]), x.double(), x, x.double().abs()).passed


def test_an_element_far_beyond_its_own_bound_fails_where_the_framework_is_wrong_elsewhere() -> None:
    x = torch.rand(64, 64, generator=torch.Generator().manual_seed(6)) + 1
    framework = x.clone()
    framework[0, 0] *= 1.01
    values = x.clone()
    values[5, 5] *= 1.01
    exact, scale = x.double(), x.double()
    assert judged(values, exact, framework, scale).passed
    found = check_output(values, exact, framework, scale, Depth(64))
    assert (found.passed, "hardest" in found.reason) == (False, True)
    assert check_output(framework, exact, framework, scale, Depth(64)).passed


def test_a_deeper_sum_may_miss_by_more() -> None:
    exact = torch.ones(100, dtype=torch.float64)
    values = torch.ones(100)
    values[3] += 1e-5
    framework = torch.ones(100)
    framework[4] += 1e-4
    passed = [check_output(values, exact, framework, exact, Depth(depth)).passed for depth in (4, 4096)]
    assert passed == [False, True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_truncation_is_found_by_its_direction(dtype: torch.dtype) -> None:
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    bits = {torch.float16: 13, torch.bfloat16: 16}[dtype]
    cut = (x.float().view(torch.int32) >> bits << bits).view(torch.float32)
    found = judged(cut.to(dtype), x, x.to(dtype), x.abs())
    assert (found.passed, "outward" in found.reason) == (False, True)
    assert judged(x.to(dtype), x, x.to(dtype), x.abs()).passed


def test_rows_that_share_a_rounding_are_not_taken_for_a_bias() -> None:
    generator = torch.Generator().manual_seed(8)
    exact = torch.rand(64, 1024, generator=generator, dtype=torch.float64) + 1
    shared = 1 + 4e-8 * torch.randn(64, 1, generator=generator, dtype=torch.float64)
    values = (exact * shared).float()
    assert judged(values, exact, exact.float(), exact).passed


def test_an_error_that_grows_faster_than_the_frameworks_fails() -> None:
    lengths = (64, 512, 4096)
    flat = [Growth(n, 3e-7 * math.sqrt(n / 64), 3e-7 * math.sqrt(n / 64), 6e-8) for n in lengths]
    steep = [Growth(n, 3e-7 * (n / 64), 3e-7 * math.sqrt(n / 64), 6e-8) for n in lengths]
    below = [Growth(n, 1e-9 * (n / 64), 3e-7, 6e-8) for n in lengths]
    assert [check_growth(found).passed for found in (flat, steep, below)] == [True, False, True]
    assert "length^1.00" in check_growth(steep).reason


def test_a_half_accumulator_grows_where_the_framework_does_not() -> None:
    found = []
    for length in (64, 512, 4096):
        x = torch.rand(64, length, generator=torch.Generator().manual_seed(length)) + 1
        total = torch.zeros(64, dtype=torch.float16)
        for column in x.half().T:
            total += column
        exact = x.half().double().sum(-1)
        framework = x.half().float().sum(-1)
        found.append(growth_at(length, total.float(), exact, framework, exact))
    assert not check_growth(found).passed


def test_a_known_answer_is_met_to_the_bit_or_to_the_roundings_allowed() -> None:
    exact = torch.tensor([1.0, 0.0, -3.0, math.inf, math.nan], dtype=torch.float64)
    values = exact.float()
    values[1] = -0.0
    assert check_exact(values, exact, exact.abs(), 0).passed
    values[2] = torch.nextafter(values[2], torch.tensor(0.0))
    assert not check_exact(values, exact, exact.abs(), 0).passed
    assert check_exact(values, exact, exact.abs(), 2).passed
    values[3] = 3e38
    assert not check_exact(values, exact, exact.abs(), 2).passed


def test_repeated_runs_may_be_apart_by_a_rounding_and_no_more() -> None:
    exact = torch.rand(1000, generator=torch.Generator().manual_seed(9), dtype=torch.float64) + 1
    first = exact.float()
    for factor, allowed in ((1 + 5e-8, True), (1 + 1e-5, False)):
        second = (exact * factor).float()
        assert check_spread(first, second, exact, first, exact).passed is allowed

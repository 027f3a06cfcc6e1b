"""The error budget: what it lets pass and what it must not."""

import pytest
import torch

from kernelwright.judge.error_budget import Verdict, check_output


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

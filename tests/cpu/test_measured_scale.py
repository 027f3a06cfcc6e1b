"""Errors where nobody has a formula: their scale is measured on the reference, part by part if the output is large."""

import pytest
import torch

from kernelwright.ops import _recorded
from kernelwright.ops._recorded import LARGE, SHIFT, _mean_squares, measured_scale


@pytest.mark.parametrize(
    "shape", [(1100, 1024), (3, 5, 70_001), (2, LARGE), (LARGE + 7,), (6, 4), (5,), (), (0, 3)]
)
def test_rows_that_moved_are_told_part_by_part_as_they_are_at_once(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(shape, generator=generator, dtype=torch.float64)
    other = base * (1 + SHIFT * torch.randn(shape, generator=generator, dtype=torch.float64))
    if base.numel() > 2:
        other.view(-1)[1] = torch.nan
    moved = torch.nan_to_num((other - base) / SHIFT).square()
    expected = moved.mean(-1, keepdim=True) if moved.ndim else moved
    assert torch.allclose(_mean_squares(base, other), expected, rtol=1e-12, equal_nan=True)


def test_where_sums_cancel_the_scale_is_that_of_what_went_into_them() -> None:
    x = torch.full((4, 64), 100.0, dtype=torch.float64)
    x[:, ::2] *= -1

    def total(inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (inputs["x"].sum(-1, keepdim=True),)

    (scale,) = measured_scale(total, {"x": x}, total({"x": x}))
    assert scale.shape == (4, 1)
    assert bool((scale > 100).all() and (scale < 100 * 64).all()), "the sum itself is zero"


def test_a_large_output_is_moved_once_and_a_small_one_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for large, expected in ((1, 1), (LARGE, 3)):
        monkeypatch.setattr(_recorded, "LARGE", large)
        asked: list[float] = []

        def twice(inputs: dict[str, torch.Tensor], asked: list[float] = asked) -> tuple[torch.Tensor, ...]:
            asked.append(float(inputs["x"][0]))
            return (2 * inputs["x"],)

        x = torch.ones(8, dtype=torch.float64)
        (scale,) = measured_scale(twice, {"x": x}, (2 * x,))
        assert (len(asked), len(set(asked))) == (expected, expected)
        assert bool((scale > 2).all() and (scale < 8).all())


def test_inputs_that_are_moved_keep_their_strides() -> None:
    x = torch.randn(48, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64).t()

    def by_place(inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return (inputs["x"].as_strided((x.numel(),), (1,)) * 2,)

    base = by_place({"x": x})
    (scale,) = measured_scale(by_place, {"x": x}, base)
    assert bool((scale < 20 * base[0].abs().max()).all()), (
        "elements have moved a little, none has changed its place"
    )

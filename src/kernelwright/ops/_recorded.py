"""What the ops share whose sizes and reference come with a file, not an op: a user's module, a region of a model.

Such an op is this file and a summary: it takes everything in `__all__`. Its inputs are drawn by our own distributions
over the recorded sizes; `core/modules.py` says how a tensor's name tells what may be in it.
"""

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kernelwright.core.case import Case, Distribution, DType, Layout, TensorSpec
from kernelwright.core.modules import Named, Role, index_axis, read
from kernelwright.core.roofline import Work
from kernelwright.core.verdict import NullModel
from kernelwright.ops._draw import compute_class, draw, draw_weight, generator, rounded

if TYPE_CHECKING:
    from torch import Generator, Tensor

__all__ = (
    "DTYPES",
    "FIXED_CASES",
    "NULL_EXCEPTIONS",
    "REQUIRED_LAYOUTS",
    "ROUNDED_INTERMEDIATES",
    "case",
    "depth",
    "edge_cases",
    "error_scale",
    "exact_inputs",
    "growth_cases",
    "make_inputs",
    "measured_scale",
    "other_scalars",
    "public_cases",
    "reference",
    "sample_case",
    "special_inputs",
    "work",
)

DTYPES = (DType.FP32, DType.FP16, DType.BF16)
REQUIRED_LAYOUTS: tuple[Layout, ...] = ()
FIXED_CASES = True
"""Sizes, strides and addresses are those its file makes: no others are part of its contract."""
ROUNDED_INTERMEDIATES = 4
"""A chain of layers rounds on the way; how often is not known."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {}
MODERATE_OFFSET, MODERATE = 8.0, 64.0
"""What lies inside a module is not known: values that overflow there would test nothing but overflow."""
SHIFT, SHIFTS, LARGE, PART = 2.0**-20, 3, 1 << 20, 1 << 17
"""Relative change of every input, and how often, by which the sensitivity of an output is measured: once where the
output has so many elements."""


def case(
    axes: Mapping[str, int], dtype: DType, scalars: Mapping[str, bool | int | float] | None = None
) -> Case:
    """Refuse: only the file itself knows its sizes."""
    raise ValueError(f"the sizes are those of the file, not {dict(axes)} {dtype.value} {scalars or ''}")


def public_cases() -> tuple[Case, ...]:
    """Return none: cases come with a file."""
    return ()


def edge_cases() -> tuple[Case, ...]:
    """Return none: a module is judged at the sizes of its file."""
    return ()


def sample_case(rng: random.Random) -> Case:  # noqa: ARG001
    """Refuse: a module has the sizes of its file and no others."""
    raise ValueError("the sizes of a module come from its file")


def growth_cases(dtype: DType) -> tuple[Case, ...]:  # noqa: ARG001
    """Return none: a module has one size."""
    return ()


def other_scalars(case: Case) -> list[dict[str, bool | int | float]]:  # noqa: ARG001
    """Return none: which other values a scalar may have is not known."""
    return []


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:  # noqa: ARG001
    """Return None: no answer of a module is known beforehand."""
    return None


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:  # noqa: ARG001
    """Return none: what a module does with NaN is nobody's promise."""
    return []


def depth(case: Case) -> int:
    """Return the number of all input elements: an output may depend on every one of them."""
    return max(1, sum(spec.numel for spec in case.inputs))


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs and weights on the CPU."""
    rng = generator(seed)
    return {spec.name: _drawn(case, spec, distribution, rng) for spec in case.inputs}


def _drawn(case: Case, spec: TensorSpec, distribution: Distribution, rng: "Generator") -> "Tensor":
    import torch

    name = read(spec.name)
    if name.role is Role.INDEX:
        extent = max(1, case.axes[index_axis(spec.name)])
        values = torch.randint(extent, spec.shape, generator=rng)
        return values.int() if spec.dtype is DType.INT32 else values
    if spec.dtype is DType.BOOL:
        return torch.rand(spec.shape, generator=rng) < 0.5
    if name.role is Role.UNIT:
        return rounded(0.02 + 0.96 * torch.rand(spec.shape, generator=rng), spec)
    values = (
        _weights(name, spec, rng)
        if name.is_state
        else draw(spec, distribution, rng, offset=MODERATE_OFFSET, tail=MODERATE, huge=MODERATE)
    )
    return values.abs() + 2.0**-10 if name.role is Role.POSITIVE else values


def _weights(name: Named, spec: TensorSpec, rng: "Generator") -> "Tensor":
    """Return weights whose products keep the magnitude of what goes in; vectors away from zero and one."""
    import torch

    if len(spec.shape) < 2 or name.role is Role.POSITIVE:
        return draw_weight(spec, rng)
    reach = spec.numel / max(1, spec.shape[0])
    return rounded(torch.randn(spec.shape, generator=rng) / max(1.0, reach) ** 0.5, spec)


def reference(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Refuse: the reference is the file's."""
    raise ValueError(
        f"a module without a file has no reference ({len(inputs)} inputs, {len(scalars)} scalars)"
    )


def error_scale(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Refuse: it is measured on the reference, see `measured_scale`."""
    return reference(inputs, scalars)


def measured_scale(
    answer: "Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]",
    inputs: Mapping[str, "Tensor"],
    base: tuple["Tensor", ...],
) -> tuple["Tensor", ...]:
    """Return, per output element, its magnitude and how far it moves when every input is rounded a little.

    The second part is the condition of the computation: where sums cancel, it is as large as what went into them. It is
    averaged over rows, so that an element the shifts happened not to move is not held to more than its neighbours.
    `base` is the answer to the inputs as they are.
    """
    import torch

    rng = generator(20)
    shifts = SHIFTS if sum(out.numel() for out in base) < LARGE else 1
    moved: list[Tensor] = []
    for _ in range(shifts):
        shifted = {
            # In this order: the product has the strides of the input, which are part of a region.
            name: tensor * torch.randn(tensor.shape, generator=rng).to(tensor).mul_(SHIFT).add_(1)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in inputs.items()
        }
        found = [_mean_squares(out, other) for out, other in zip(base, answer(shifted), strict=True)]
        moved = [before + now for before, now in zip(moved, found, strict=True)] if moved else found
    return tuple(out.abs().add_((total / shifts).sqrt_()) for out, total in zip(base, moved, strict=True))


def _mean_squares(out: "Tensor", other: "Tensor") -> "Tensor":
    """Return how far the elements of a row have moved, squared, in the mean; rows of a large output bit by bit."""
    import torch

    if out.ndim < 2 or out.numel() < LARGE or out.is_cuda:
        squares = (other - out).div_(SHIFT).nan_to_num_().square_()
        return squares.mean(-1, keepdim=True) if out.ndim else squares
    rows = out.shape[:-1].numel()
    step = max(1, PART * rows // out.numel())
    parts = zip(*(one.reshape(rows, -1).split(step) for one in (out, other)), strict=True)
    means = [(moved - base).div_(SHIFT).nan_to_num_().square_().mean(-1) for base, moved in parts]
    return torch.cat(means).view(*out.shape[:-1], 1)


def work(case: Case) -> Work:
    """Return bytes of all inputs and outputs; what is computed inside is not known."""
    return Work(
        bytes_read=sum(spec.nbytes for spec in case.inputs),
        bytes_written=sum(spec.nbytes for spec in case.outputs),
        flops=0,
        compute_class=compute_class(case),
    )

"""RMSNorm over the last axis: out = x / sqrt(mean(x^2) + eps) * weight."""

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelwright.core.case import Case, Compute, Distribution, DType, Layout, TensorSpec
from kernelwright.core.ports import BigCase, Match, View
from kernelwright.core.roofline import Work
from kernelwright.core.verdict import NullModel
from kernelwright.ops._draw import (
    draw,
    draw_weight,
    generator,
    log_uniform,
    one_per_row,
    planted,
    rounded,
    slices_beyond,
)
from kernelwright.ops._match import (
    argument,
    called,
    commuted,
    flat,
    inside_cast,
    is_last,
    kind,
    number,
    operands,
    rows_of,
    shape,
    shaped,
    uncast,
)

if TYPE_CHECKING:
    from torch import Tensor

SUMMARY = "x / sqrt(mean(x^2) + eps) * weight over the last axis"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
BOARD = ((2048, 4096), (4096, 4096), (8192, 4096), (8192, 8192))
"""Sizes of the H200 board and of AutoKernel's table."""
SMALL = ((4, 64), (64, 256), (128, 1024))
REQUIRED_LAYOUTS = (Layout.OFFSET, Layout.ROW_STRIDED)
"""Ways of lying in memory a candidate must serve; of others it may decline."""
ROUNDED_INTERMEDIATES = 1
"""The framework rounds the normalised row to the type of the output before the weight is applied."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {}
"""Null models that do not apply, and why."""
EDGES = ((1, 1), (1, 4096), (7, 1), (3, 127), (5, 1023), (2, 1025), (13, 4097), (31, 97), (2, 50257), (0, 64))


def case(
    axes: Mapping[str, int], dtype: DType, scalars: Mapping[str, bool | int | float] | None = None
) -> Case:
    """Return the contiguous case of that size."""
    rows, cols = axes["rows"], axes["cols"]
    return Case(
        op="rmsnorm",
        axes={"rows": rows, "cols": cols},
        dtype=dtype,
        compute=Compute.STRICT_FP32 if dtype is DType.FP32 else Compute.FP32_ACCUMULATE,
        inputs=(
            TensorSpec(name="x", shape=(rows, cols), dtype=dtype),
            TensorSpec(name="weight", shape=(cols,), dtype=dtype),
        ),
        outputs=(TensorSpec(name="out", shape=(rows, cols), dtype=dtype),),
        scalars={"eps": 1e-5, **(scalars or {})},
    )


def public_cases() -> tuple[Case, ...]:
    """Return small sizes in every dtype and the board in fp16."""
    small = [case({"rows": r, "cols": c}, dtype) for r, c in SMALL for dtype in DTYPES]
    board = [case({"rows": r, "cols": c}, DType.FP16) for r, c in BOARD]
    return (*small, *board)


def edge_cases() -> tuple[Case, ...]:
    """Return awkward sizes, with an eps that matters on some."""
    return tuple(
        case({"rows": r, "cols": c}, dtype, {"eps": 1e-6 if r % 2 else 0.3})
        for r, c in EDGES
        for dtype in DTYPES
    )


def sample_case(rng: random.Random) -> Case:
    """Return a random legal case of at most about a million elements."""
    cols = log_uniform(1, 16384, rng.random())
    rows = log_uniform(1, max(1, (1 << 20) // cols), rng.random())
    return case({"rows": rows, "cols": cols}, rng.choice(DTYPES), {"eps": 10 ** rng.uniform(-8, -1)})


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs on the CPU."""
    rng = generator(seed)
    x, weight = case.inputs
    return {"x": draw(x, distribution, rng), "weight": draw_weight(weight, rng)}


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
    """Return rows of one magnitude, whose answer is the weight, or rows with one element, whose answer is its size.

    The magnitudes make eps vanish. The second value tells by how many roundings an honest answer may miss.
    """
    import torch

    rng = generator(seed)
    x, weight = case.inputs
    if not x.numel:
        return None
    values = torch.where(torch.rand(x.shape, generator=rng) < 0.5, -4096.0, 4096.0)
    if seed % 2:
        values = values * one_per_row(x, rng)
    inputs = {"x": rounded(values, x), "weight": draw_weight(weight, rng)}
    return inputs, 8 if case.dtype is DType.FP32 else 2


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return inputs with special values, and where they are."""
    return planted(make_inputs(case, Distribution.SIGNED, seed), ("x", "weight"), seed)


def other_scalars(case: Case) -> list[dict[str, bool | int | float]]:
    """Return scalars under which the same inputs have another answer."""
    return [{"eps": 0.5 if float(case.scalars["eps"]) < 0.1 else 1e-3}]


def growth_cases(dtype: DType) -> tuple[Case, ...]:
    """Return cases that differ only in the length of the reduction, shortest first."""
    return tuple(case({"rows": 64, "cols": cols}, dtype) for cols in (64, 1024, 16384))


def big_case(dtype: DType, elements: int) -> BigCase:
    """Return a case of a little more elements than that, many rows long."""
    axes = {"rows": slices_beyond(elements, 4096), "cols": 4096}
    return BigCase(case(axes, dtype), "rows", 16)


def depth(case: Case) -> int:
    """Return how many roundings of fp32 may pile up in an element, in units of its error scale."""
    return case.axes["cols"] + 8


def reference(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the framework's own result in the precision of the inputs."""
    import torch
    import torch.nn.functional as F

    x, weight = inputs["x"], inputs["weight"]
    if x.dtype is torch.float64:
        # The framework's own GPU kernel answers a row that holds an infinity otherwise (docs/measured.md).
        return (x * (x.square().mean(-1, keepdim=True) + float(scalars["eps"])).rsqrt() * weight,)
    return (F.rms_norm(x, (x.shape[-1],), weight, float(scalars["eps"])),)


def error_scale(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return |out| itself: nothing cancels in the formula, so every element is good to relative precision."""
    return (reference(inputs, scalars)[0].abs(),)


def work(case: Case) -> Work:
    """Return bytes of x, weight and out; a square, a sum, two products per element."""
    x, weight = case.inputs
    return Work(
        bytes_read=x.nbytes + weight.nbytes,
        bytes_written=case.outputs[0].nbytes,
        flops=4 * x.numel,
        compute_class=case.dtype.value,
    )


FRAMEWORK_EPS = 2.0**-23
"""What `torch.rms_norm` takes if it is given none: that of fp32, halves included (tried on 2.13)."""


def recognise(node: Any) -> Match | None:
    """Return RMSNorm as `torch.rms_norm`, or as a product with the weight written out, upcast to fp32 or not.

    Where weight and input are of different types, what is computed between the casts is the op.
    """
    inner = inside_cast(node)
    found = _called_norm(inner) if called(inner, "rms_norm") else _written_norm(inner)
    values = None if found is None else operands(node, *found[:2])
    if found is None or values is None:
        return None
    x, weight = values
    if shape(node) != shape(x) or shape(weight) != shape(x)[-1:]:
        return None
    dtype = kind(node)
    assert dtype is not None
    size = {"rows": rows_of(x), "cols": shape(x)[-1]}
    made = case(size, dtype, {"eps": found[2]})
    return Match(made, {"x": flat(x), "weight": View(weight)}, (shaped(node),))


def _called_norm(node: Any) -> tuple[Any, Any, float] | None:
    x, extents, weight, eps = (
        argument(node, place, name)
        for place, name in enumerate(("input", "normalized_shape", "weight", "eps"))
    )
    if weight is None or len(extents) != 1:
        return None
    return x, weight, FRAMEWORK_EPS if eps is None else float(eps)


def _written_norm(node: Any) -> tuple[Any, Any, float] | None:
    """Return x, weight and eps of `weight * (x * rsqrt(mean(x^2) + eps))`, casts between floats anywhere in it."""
    for weight, scaled in commuted(node, "mul"):
        scaled, pairs = uncast(scaled), []
        if called(scaled, "div"):
            pairs = [(scaled.args[0], scaled.args[1])] if called(scaled.args[1], "sqrt") else []
        elif called(scaled, "mul"):
            pairs = [(x, root) for x, root in commuted(scaled, "mul") if called(root, "rsqrt")]
        for x, root in pairs:
            eps = _mean_square_eps(root.args[0], uncast(x))
            if eps is not None:
                return x, weight, eps
    return None


def _mean_square_eps(node: Any, x: Any) -> float | None:
    """Return eps if the node is `mean(x^2) + eps` over the last axis."""
    for mean, eps in commuted(node, "add"):
        if (
            number(eps) is None
            or not called(mean, "mean")
            or not is_last(mean.args[0], argument(mean, 1, "dim"))
        ):
            continue
        square = mean.args[0]
        is_square = (called(square, "pow") and number(square.args[1]) == 2) or (
            called(square, "mul") and square.args[0] is square.args[1]
        )
        if is_square and uncast(square.args[0]) is x and argument(mean, 2, "keepdim", False):
            return number(eps)
    return None

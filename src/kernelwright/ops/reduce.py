"""Sum or maximum over the last axis."""

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernelwright.core.case import Case, Distribution, DType, TensorSpec
from kernelwright.core.roofline import Work
from kernelwright.ops._draw import (
    compute_class,
    declared_compute,
    draw,
    draw_few_integers,
    exact_sum,
    generator,
    hidden_extent,
)

if TYPE_CHECKING:
    from torch import Tensor

SUMMARY = "sum or max over the last axis"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
EXACT_ON_INTEGERS = True
"""Integer inputs have one right answer, to the bit."""
BOARD = ((4096, 4096), (8192, 8192), (16384, 4096))
"""Sizes of the H200 board and of AutoKernel's table; both sum."""
SMALL = ((4, 64), (64, 256), (128, 1024))
EDGES = (
    (1, 1),
    (1, 4096),
    (7, 1),
    (3, 127),
    (5, 1023),
    (2, 1025),
    (13, 4097),
    (2, 50257),
    (1, 262147),
    (0, 64),
)


def case(
    axes: Mapping[str, int], dtype: DType, scalars: Mapping[str, bool | int | float] | None = None
) -> Case:
    """Return the contiguous case of that size."""
    rows, cols = axes["rows"], axes["cols"]
    chosen = {"is_max": False, **(scalars or {})}
    if chosen["is_max"] and cols == 0:
        raise ValueError("the maximum over no columns does not exist; reduce at least one or take the sum")
    return Case(
        op="reduce",
        axes={"rows": rows, "cols": cols},
        dtype=dtype,
        compute=declared_compute(dtype),
        inputs=(TensorSpec(name="x", shape=(rows, cols), dtype=dtype),),
        outputs=(TensorSpec(name="out", shape=(rows,), dtype=dtype),),
        scalars=chosen,
    )


def public_cases() -> tuple[Case, ...]:
    """Return small sizes in every dtype, sum and max, and the board's sums in fp16."""
    small = [
        case({"rows": r, "cols": c}, dtype, {"is_max": is_max})
        for r, c in SMALL
        for dtype in DTYPES
        for is_max in (False, True)
    ]
    return (*small, *(case({"rows": r, "cols": c}, DType.FP16) for r, c in BOARD))


def edge_cases() -> tuple[Case, ...]:
    """Return awkward sizes, one very long row, and a sum over nothing."""
    both = tuple(
        case({"rows": r, "cols": c}, dtype, {"is_max": is_max})
        for r, c in EDGES
        for dtype in DTYPES
        for is_max in (False, True)
    )
    return (*both, *(case({"rows": 5, "cols": 0}, dtype) for dtype in DTYPES))


def sample_case(rng: random.Random) -> Case:
    """Return a random legal case of at most about a million elements."""
    cols = hidden_extent(1, 65536, rng)
    rows = hidden_extent(1, (1 << 20) // cols, rng)
    return case({"rows": rows, "cols": cols}, rng.choice(DTYPES), {"is_max": rng.random() < 0.3})


def _integers(case: Case, seed: int) -> "Tensor":
    """Return integers: few enough for an exact sum, or rows of different levels, so that maxima differ."""
    import torch

    rng = generator(seed)
    x = case.inputs[0]
    if not case.scalars["is_max"]:
        largest = 4 if case.dtype is DType.BF16 else 8
        return draw_few_integers(x, rng, largest=largest, at_most=exact_sum(case.dtype) // largest)
    level = torch.randint(-128, 129, (x.shape[0], 1), generator=rng)
    return draw(x, Distribution.INTEGER, rng, largest_integer=128) + level


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs on the CPU whose sums stay within fp16."""
    if distribution is Distribution.INTEGER:
        return {"x": _integers(case, seed)}
    half = case.dtype is not DType.FP32
    offset = min(64.0, 16384 / max(1, case.axes["cols"])) if half else None
    return {"x": draw(case.inputs[0], distribution, generator(seed), offset=offset)}


def reference(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the framework's own result in the precision of the inputs."""
    x = inputs["x"]
    return (x.amax(-1) if scalars["is_max"] else x.sum(-1),)


def error_scale(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the sum of |terms|, or |max| itself, which needs no rounding at all."""
    x = inputs["x"].double()
    return (x.amax(-1).abs() if scalars["is_max"] else x.abs().sum(-1),)


def work(case: Case) -> Work:
    """Return bytes of x and out; one operation per element."""
    x = case.inputs[0]
    return Work(
        bytes_read=x.nbytes,
        bytes_written=case.outputs[0].nbytes,
        flops=x.numel,
        compute_class=compute_class(case),
    )

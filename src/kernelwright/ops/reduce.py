"""Sum or maximum over the last axis."""

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelwright.core.case import Case, Distribution, DType, Layout, TensorSpec
from kernelwright.core.ports import BigCase, Match
from kernelwright.core.roofline import Work
from kernelwright.core.verdict import NullModel
from kernelwright.ops._draw import (
    compute_class,
    declared_compute,
    draw,
    draw_few_integers,
    exact_sum,
    generator,
    hidden_extent,
    one_per_row,
    planted,
    rounded,
    slices_beyond,
)
from kernelwright.ops._match import are_floats, argument, called, flat, is_last, kind, rows_of, shape, shaped

if TYPE_CHECKING:
    from torch import Tensor

SUMMARY = "sum or max over the last axis"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
EXACT_ON_INTEGERS = True
"""Integer inputs have one right answer, to the bit."""
BOARD = ((4096, 4096), (8192, 8192), (16384, 4096))
"""Sizes of the H200 board and of AutoKernel's table; both sum."""
SMALL = ((4, 64), (64, 256), (128, 1024))
REQUIRED_LAYOUTS = (Layout.OFFSET, Layout.ROW_STRIDED)
"""Ways of lying in memory a candidate must serve; of others it may decline."""
ROUNDED_INTERMEDIATES = 0
"""Intermediates the framework rounds to the type of the output."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {
    NullModel.PASSED_THROUGH: "the answer has an axis less than the input",
}
"""Null models that do not apply, and why."""
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
    half, cols = case.dtype is not DType.FP32, max(1, case.axes["cols"])
    offset = min(64.0, 16384 / cols) if half else None
    huge = 59000.0 / cols if case.dtype is DType.FP16 and not case.scalars["is_max"] else None
    return {"x": draw(case.inputs[0], distribution, generator(seed), offset=offset, huge=huge)}


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
    """Return integers, rows of one element, cancelling neighbours or nothing above zero: fp32 sums are exact.

    The second value tells by how many roundings an honest answer may miss: by none.
    """
    import torch

    rng = generator(seed)
    x = case.inputs[0]
    if not x.numel or x.shape[-1] > 1 << 20:
        return None
    values = draw(x, Distribution.SIGNED, rng)
    if seed % 4 == 1:
        return {"x": values * one_per_row(x, rng)}, 0
    if seed % 4 == 2:
        return {"x": rounded(8 * (1.0 - 2.0 * (torch.arange(x.shape[-1]) % 2)).expand(x.shape), x)}, 0
    if seed % 4 == 3 and case.scalars["is_max"]:
        return {"x": -values.abs() - 1}, 0
    return {"x": draw(x, Distribution.INTEGER, rng)}, 0


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return inputs with special values, and where they are; one infinity is among large numbers of the other sign."""
    import torch

    inputs = make_inputs(case, Distribution.SIGNED, seed)
    found, cols = planted(inputs, ("x",), seed), case.axes["cols"]
    if cols > 1 and case.axes["rows"]:
        # An accumulator with less room than fp32 is at +inf already when -inf comes, and answers NaN.
        x, place = inputs["x"].clone(), seed % cols
        x[-1] = min(torch.finfo(x.dtype).max, torch.finfo(torch.float32).max / (4 * cols))
        x[-1, place] = -math.inf
        found.append((f"-inf at element {place} of a row of large numbers", {**inputs, "x": x}))
    return found


def other_scalars(case: Case) -> list[dict[str, bool | int | float]]:
    """Return scalars under which the same inputs have another answer."""
    return [{"is_max": not case.scalars["is_max"]}] if case.axes["cols"] > 1 else []


def growth_cases(dtype: DType) -> tuple[Case, ...]:
    """Return sums that differ only in their length, shortest first."""
    return tuple(case({"rows": 256, "cols": cols}, dtype) for cols in (64, 512, 4096))


def big_case(dtype: DType, elements: int) -> BigCase:
    """Return a case of a little more elements than that, many rows long."""
    axes = {"rows": slices_beyond(elements, 4096), "cols": 4096}
    return BigCase(case(axes, dtype), "rows", 64)


def depth(case: Case) -> int:
    """Return how many roundings of fp32 may pile up in an element, in units of its error scale."""
    return 0 if case.scalars["is_max"] else case.axes["cols"]


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


def recognise(node: Any) -> Match | None:
    """Return a sum or maximum over the last axis, the axis kept with extent one or not."""
    call = node.args[0] if called(node, "getitem") and node.args[1] == 0 else node
    is_whole = call is node and called(call, "sum", "amax")
    if not is_whole and not (call is not node and called(call, "max") and len(call.args) > 1):
        return None
    x = call.args[0]
    dims = argument(call, 1, "dim")
    if dims is None or not shape(x) or not is_last(x, dims) or not are_floats(node, x) or not shape(x)[-1]:
        return None
    dtype = kind(node)
    assert dtype is not None
    scalars = {"is_max": not called(call, "sum")}
    made = case({"rows": rows_of(x), "cols": shape(x)[-1]}, dtype, scalars)
    return Match(made, {"x": flat(x)}, (shaped(node),))

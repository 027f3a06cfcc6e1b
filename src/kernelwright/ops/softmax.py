"""Softmax over the last axis: out = exp(x - max(x)) / sum(exp(x - max(x)))."""

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
    generator,
    hidden_extent,
    planted,
    rounded,
    slices_beyond,
)
from kernelwright.ops._match import (
    are_floats,
    argument,
    called,
    flat,
    inside_cast,
    is_last,
    kind,
    rows_of,
    shape,
    shaped,
    uncast,
)

if TYPE_CHECKING:
    from torch import Tensor

SUMMARY = "exp(x) / sum(exp(x)) over the last axis"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
BOARD = ((4096, 4096), (8192, 8192), (4096, 50257))
"""Sizes of the H200 board and of AutoKernel's table."""
SMALL = ((4, 64), (64, 256), (128, 1024))
REQUIRED_LAYOUTS = (Layout.OFFSET, Layout.ROW_STRIDED)
"""Ways of lying in memory a candidate must serve; of others it may decline."""
ROUNDED_INTERMEDIATES = 0
"""Intermediates the framework rounds to the type of the output."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {}
"""Null models that do not apply, and why."""
EDGES = (
    (1, 1),
    (1, 4096),
    (7, 1),
    (3, 127),
    (5, 1023),
    (2, 1025),
    (13, 4097),
    (31, 97),
    (3, 50257),
    (0, 64),
    (5, 0),
)


def case(
    axes: Mapping[str, int], dtype: DType, scalars: Mapping[str, bool | int | float] | None = None
) -> Case:
    """Return the contiguous case of that size."""
    rows, cols = axes["rows"], axes["cols"]
    return Case(
        op="softmax",
        axes={"rows": rows, "cols": cols},
        dtype=dtype,
        compute=declared_compute(dtype),
        inputs=(TensorSpec(name="x", shape=(rows, cols), dtype=dtype),),
        outputs=(TensorSpec(name="out", shape=(rows, cols), dtype=dtype),),
        scalars=dict(scalars or {}),
    )


def public_cases() -> tuple[Case, ...]:
    """Return small sizes in every dtype and the board in fp16."""
    small = [case({"rows": r, "cols": c}, dtype) for r, c in SMALL for dtype in DTYPES]
    return (*small, *(case({"rows": r, "cols": c}, DType.FP16) for r, c in BOARD))


def edge_cases() -> tuple[Case, ...]:
    """Return awkward sizes, a vocabulary and empty axes."""
    return tuple(case({"rows": r, "cols": c}, dtype) for r, c in EDGES for dtype in DTYPES)


def sample_case(rng: random.Random) -> Case:
    """Return a random legal case of at most about a million elements."""
    cols = hidden_extent(1, 65536, rng)
    rows = hidden_extent(1, (1 << 20) // cols, rng)
    return case({"rows": rows, "cols": cols}, rng.choice(DTYPES))


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs on the CPU."""
    return {"x": draw(case.inputs[0], distribution, generator(seed))}


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
    """Return rows in which a power of two of elements, or all, share the maximum and the rest is out of reach.

    Their answer is one over the number of maxima, and zero. The second value tells by how many roundings an honest
    answer may miss.
    """
    import torch

    rng = generator(seed)
    x = case.inputs[0]
    if not x.numel:
        return None
    rows, cols = x.shape
    count = torch.full((rows, 1), cols)
    if seed % 2:
        count = 1 << torch.randint(cols.bit_length(), (rows, 1), generator=rng)
    is_top = torch.rand(x.shape, generator=rng).argsort(-1) < count
    level = torch.randint(-2, 3, (rows, 1), generator=rng)
    return {"x": rounded(torch.where(is_top, level, level - 1000).float(), x)}, 4


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return inputs with special values, and a row of which nothing is left."""
    import torch

    plain = make_inputs(case, Distribution.SIGNED, seed)
    found = planted(plain, ("x",), seed)
    if plain["x"].numel():
        masked = plain["x"].clone()
        masked[-1] = -torch.inf
        found.append(("a row of nothing but -inf", {"x": masked}))
    return found


def other_scalars(case: Case) -> list[dict[str, bool | int | float]]:  # noqa: ARG001
    """Return scalars under which the same inputs have another answer: there are none."""
    return []


def growth_cases(dtype: DType) -> tuple[Case, ...]:
    """Return cases that differ only in the length of the reduction, shortest first."""
    return tuple(case({"rows": 64, "cols": cols}, dtype) for cols in (64, 1024, 16384))


def big_case(dtype: DType, elements: int) -> BigCase:
    """Return a case of a little more elements than that, many rows long."""
    axes = {"rows": slices_beyond(elements, 4096), "cols": 4096}
    return BigCase(case(axes, dtype), "rows", 16)


def depth(case: Case) -> int:
    """Return how many roundings of fp32 may pile up in an element, in units of its error scale."""
    return case.axes["cols"] + 2


def reference(
    inputs: Mapping[str, "Tensor"],
    scalars: Mapping[str, bool | int | float],  # noqa: ARG001
) -> tuple["Tensor", ...]:
    """Return the framework's own result in the precision of the inputs."""
    import torch.nn.functional as F

    return (F.softmax(inputs["x"], dim=-1),)


def error_scale(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return |out|, grown with the distance to the maximum, whose rounding the exponential amplifies in full."""
    x = inputs["x"].double()
    if x.numel() == 0:
        return (x,)
    # Beyond 750 the exponential is zero even in float64; the bound keeps 0 * inf out where x is -inf.
    distance = (x.amax(-1, keepdim=True) - x).clamp(max=750)
    return (reference({"x": x}, scalars)[0] * (1 + distance),)


def work(case: Case) -> Work:
    """Return bytes of x and out; a comparison, a difference, an exponential, a sum, a product per element."""
    x = case.inputs[0]
    return Work(
        bytes_read=x.nbytes,
        bytes_written=case.outputs[0].nbytes,
        flops=5 * x.numel,
        compute_class=compute_class(case),
    )


def recognise(node: Any) -> Match | None:
    """Return softmax over the last axis, in fp32 inside or not."""
    softmax = inside_cast(node)
    if not called(softmax, "softmax", "_softmax") or not is_last(softmax, softmax.args[1]):
        return None
    x = softmax.args[0] if are_floats(node, softmax.args[0]) else uncast(softmax.args[0])
    # A cast behind it belongs to it only if there was one before: fp32 inside, the input's type outside.
    if not are_floats(node, x) or (node is not softmax and are_floats(softmax, x)):
        return None
    if called(softmax, "_softmax") and argument(softmax, 2, "half_to_float", False):
        return None
    dtype = kind(node)
    assert dtype is not None
    made = case({"rows": rows_of(x), "cols": shape(x)[-1]}, dtype)
    return Match(made, {"x": flat(x)}, (shaped(node),))

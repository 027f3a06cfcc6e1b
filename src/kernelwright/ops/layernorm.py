"""LayerNorm over the last axis: out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias."""

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelwright.core.case import Case, Distribution, DType, Layout, TensorSpec
from kernelwright.core.ports import BigCase, Match, View
from kernelwright.core.roofline import Work
from kernelwright.core.verdict import NullModel
from kernelwright.ops._draw import (
    INTERNAL_SHARE,
    compute_class,
    declared_compute,
    draw,
    draw_weight,
    generator,
    hidden_extent,
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
    same,
    shape,
    shaped,
    uncast,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

SUMMARY = "(x - mean(x)) / sqrt(var(x) + eps) * weight + bias over the last axis"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
BOARD = ((4096, 2048), (4096, 5120), (8192, 4096), (8192, 8192))
"""Sizes of the H200 board and of AutoKernel's table."""
SMALL = ((4, 64), (64, 256), (128, 1024))
REQUIRED_LAYOUTS = (Layout.OFFSET, Layout.ROW_STRIDED)
"""Ways of lying in memory a candidate must serve; of others it may decline."""
ROUNDED_INTERMEDIATES = 0
"""Intermediates the framework rounds to the type of the output."""
ROUNDED_AWAY = 1e-3
"""What may be left of an element after its mean in one way to round and not in another."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {}
"""Null models that do not apply, and why."""
EDGES = ((1, 1), (1, 4096), (7, 1), (3, 127), (5, 1023), (2, 1025), (13, 4097), (31, 97), (2, 50257), (0, 64))


def case(
    axes: Mapping[str, int], dtype: DType, scalars: Mapping[str, bool | int | float] | None = None
) -> Case:
    """Return the contiguous case of that size."""
    rows, cols = axes["rows"], axes["cols"]
    return Case(
        op="layernorm",
        axes={"rows": rows, "cols": cols},
        dtype=dtype,
        compute=declared_compute(dtype),
        inputs=(
            TensorSpec(name="x", shape=(rows, cols), dtype=dtype),
            TensorSpec(name="weight", shape=(cols,), dtype=dtype),
            TensorSpec(name="bias", shape=(cols,), dtype=dtype),
        ),
        outputs=(TensorSpec(name="out", shape=(rows, cols), dtype=dtype),),
        scalars={"eps": 1e-5, **(scalars or {})},
    )


def public_cases() -> tuple[Case, ...]:
    """Return small sizes in every dtype and the board in fp16."""
    small = [case({"rows": r, "cols": c}, dtype) for r, c in SMALL for dtype in DTYPES]
    return (*small, *(case({"rows": r, "cols": c}, DType.FP16) for r, c in BOARD))


def edge_cases() -> tuple[Case, ...]:
    """Return awkward sizes, with an eps that matters on some."""
    # One column has no variance: a small eps would set the error scale and drown the bias, the whole answer.
    return tuple(
        case({"rows": r, "cols": c}, dtype, {"eps": 1e-6 if r % 2 and c > 1 else 0.3})
        for r, c in EDGES
        for dtype in DTYPES
    )


def sample_case(rng: random.Random) -> Case:
    """Return a random legal case of at most about a million elements."""
    cols = hidden_extent(2, 16384, rng)
    rows = hidden_extent(1, (1 << 20) // cols, rng)
    return case({"rows": rows, "cols": cols}, rng.choice(DTYPES), {"eps": 10 ** rng.uniform(-6, -1)})


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs on the CPU."""
    rng = generator(seed)
    x, weight, bias = case.inputs
    return {
        "x": draw(x, distribution, rng),
        "weight": draw_weight(weight, rng),
        "bias": draw_weight(bias, rng),
    }


def _balanced(shape: tuple[int, ...], rng: "Generator") -> "Tensor":
    """Return as many 1 as -1 in each row, in random order, and a 0 if the row is odd."""
    import torch

    half = shape[-1] // 2
    order = torch.rand(shape, generator=rng).argsort(-1)
    return (order < half).float() - (order >= shape[-1] - half).float()


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
    """Return balanced rows around a level, whose answer is bias plus or minus weight, or rows with one element.

    The magnitudes make eps vanish. The second value tells by how many roundings an honest answer may miss.
    """
    import torch

    rng = generator(seed)
    x, weight, bias = case.inputs
    if not x.numel:
        return None
    gain = torch.where(torch.rand(weight.shape, generator=rng) < 0.5, -2.0, 2.0)
    if seed % 2:
        values, shift = 1024.0 * one_per_row(x, rng), torch.zeros(bias.shape)
    else:
        level = torch.randint(-3, 4, (x.shape[0], 1), generator=rng)
        values = 1024.0 * (level + _balanced(x.shape, rng))
        shift = 2.0 * torch.randint(-3, 3, bias.shape, generator=rng) + 1
    inputs = {"x": rounded(values, x), "weight": rounded(gain, weight), "bias": rounded(shift, bias)}
    return inputs, 16 if case.dtype is DType.FP32 else 2


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return inputs with special values, and where they are."""
    found = planted(make_inputs(case, Distribution.SIGNED, seed), ("x", "weight", "bias"), seed, ("bias",))
    return [(what, _off_centre(inputs)) for what, inputs in found]


def _off_centre(inputs: dict[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Return inputs in which nothing under an infinite weight is the mean of its row.

    Infinity times the nothing that is left of it is NaN, times a rounding error it is infinite: both are honest.
    """
    import torch

    x = inputs["x"]
    left = (x.double() - x.double().mean(-1, keepdim=True)).abs()
    return {**inputs, "x": torch.where((left < ROUNDED_AWAY) & inputs["weight"].isinf(), x + 1, x)}


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
    # The mean's own sum rounds `cols` times and counts in the scale with a share only.
    return int((1 + case.axes["cols"]) / INTERNAL_SHARE)


def reference(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the framework's own result in the precision of the inputs."""
    import torch.nn.functional as F

    x = inputs["x"]
    return (F.layer_norm(x, (x.shape[-1],), inputs["weight"], inputs["bias"], float(scalars["eps"])),)


def error_scale(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the sum of |terms| of the affine form, with a share of the mean that was subtracted."""
    x, weight, bias = (inputs[name].double() for name in ("x", "weight", "bias"))
    mean = x.mean(-1, keepdim=True)
    deviation = ((x - mean).square().mean(-1, keepdim=True) + float(scalars["eps"])).sqrt()
    terms = (x - mean).abs() + INTERNAL_SHARE * mean.abs()
    return (terms / deviation * weight.abs() + bias.abs(),)


def work(case: Case) -> Work:
    """Return bytes of x, weight, bias and out; seven operations per element."""
    return Work(
        bytes_read=sum(spec.nbytes for spec in case.inputs),
        bytes_written=case.outputs[0].nbytes,
        flops=7 * case.inputs[0].numel,
        compute_class=compute_class(case),
    )


def recognise(node: Any) -> Match | None:
    """Return LayerNorm as `layer_norm` with weight and bias, or written out.

    Where weights and input are of different types, what is computed between the casts is the op.
    """
    inner = inside_cast(node)
    found = _called_norm(inner) if called(inner, "layer_norm") else _written_norm(inner)
    values = None if found is None else operands(node, *found[:3])
    if found is None or values is None:
        return None
    x, weight, bias = values
    if shape(node) != shape(x) or {shape(weight), shape(bias)} != {shape(x)[-1:]}:
        return None
    dtype = kind(node)
    assert dtype is not None
    made = case({"rows": rows_of(x), "cols": shape(x)[-1]}, dtype, {"eps": found[3]})
    return Match(made, {"x": flat(x), "weight": View(weight), "bias": View(bias)}, (shaped(node),))


def _called_norm(node: Any) -> tuple[Any, Any, Any, float] | None:
    x, extents, weight, bias, eps = (
        argument(node, place, name, default)
        for place, (name, default) in enumerate(
            (("input", None), ("normalized_shape", None), ("weight", None), ("bias", None), ("eps", 1e-5))
        )
    )
    if weight is None or bias is None or len(extents) != 1:
        return None
    return x, weight, bias, float(eps)


def _written_norm(node: Any) -> tuple[Any, Any, Any, float] | None:
    """Return x, weight, bias and eps of `(x - mean) / sqrt(var + eps) * weight + bias`, casts anywhere in it."""
    for bias, scaled in commuted(node, "add"):
        for weight, normal in commuted(uncast(scaled), "mul"):
            found = _centred(uncast(normal))
            if found is not None:
                return found[0], weight, bias, found[1]
    return None


def _centred(node: Any) -> tuple[Any, float] | None:
    """Return x and eps of `(x - mean) / sqrt(var + eps)` or the same with rsqrt."""
    if called(node, "div") and called(node.args[1], "sqrt"):
        pairs = [(node.args[0], node.args[1].args[0])]
    else:
        pairs = [(a, b.args[0]) for a, b in commuted(node, "mul") if called(b, "rsqrt")]
    for centred, spread in pairs:
        if not called(centred, "sub") or not _is_mean(centred.args[1], centred.args[0]):
            continue
        for variance, eps in commuted(spread, "add"):
            if number(eps) is not None and _is_variance(variance, centred):
                return centred.args[0], float(eps)
    return None


def _is_mean(node: Any, x: Any) -> bool:
    is_mean = called(node, "mean") and uncast(node.args[0]) is uncast(x)
    return is_mean and is_last(node.args[0], argument(node, 1, "dim")) and bool(argument(node, 2, "keepdim"))


def _is_variance(node: Any, centred: Any) -> bool:
    """Tell whether a node is the variance of what was centred: by `var`, or as the mean of the squares."""
    if called(node, "var"):
        is_biased = argument(node, 3, "correction", 1) == 0 or node.kwargs.get("correction") == 0
        is_biased = is_biased or argument(node, 2, "unbiased", True) is False
        return (
            is_biased
            and uncast(node.args[0]) is uncast(centred.args[0])
            and is_last(node.args[0], node.args[1])
        )
    if not called(node, "mean") or not is_last(node.args[0], argument(node, 1, "dim")):
        return False
    square = node.args[0]
    if called(square, "pow"):
        return number(square.args[1]) == 2 and same(uncast(square.args[0]), centred)
    return called(square, "mul") and same(square.args[0], centred) and same(square.args[1], centred)

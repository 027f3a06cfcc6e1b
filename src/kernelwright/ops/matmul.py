"""Matrix product: out = a @ b."""

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelwright.core.case import Case, Compute, Distribution, DType, Layout, TensorSpec
from kernelwright.core.ports import BigCase, Match, View
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
    product,
    rounded,
    slices_beyond,
)
from kernelwright.ops._match import are_floats, argument, called, flat, kind, rows_of, shape, shaped

if TYPE_CHECKING:
    from torch import Generator, Tensor

SUMMARY = "a @ b"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
EXACT_ON_INTEGERS = True
"""Integer inputs have one right answer, to the bit."""
BOARD = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192))
"""m, n, k of the H200 board and of AutoKernel's table."""
SMALL = ((16, 16, 16), (64, 96, 128), (256, 192, 160), (512, 512, 512))
REQUIRED_LAYOUTS = (Layout.OFFSET, Layout.ROW_STRIDED)
"""Ways of lying in memory a candidate must serve; of others it may decline."""
ROUNDED_INTERMEDIATES = 0
"""Intermediates the framework rounds to the type of the output."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {
    NullModel.PASSED_THROUGH: "a factor has the shape of the product only if the other one is square",
}
"""Null models that do not apply, and why."""
EDGES = (
    (1, 1, 1),
    (1, 129, 4096),
    (127, 1, 63),
    (37, 1, 1000),
    (31, 97, 61),
    (65, 63, 64),
    (33, 31, 257),
    (129, 127, 1),
    (7, 5, 1023),
    (2, 50257, 17),
    (0, 64, 32),
    (64, 0, 32),
    (33, 17, 0),
)


def case(
    axes: Mapping[str, int],
    dtype: DType,
    scalars: Mapping[str, bool | int | float] | None = None,
    compute: Compute | None = None,
) -> Case:
    """Return the contiguous case of that size; `compute` may allow tf32 for fp32 inputs."""
    m, n, k = axes["m"], axes["n"], axes["k"]
    return Case(
        op="matmul",
        axes={"m": m, "n": n, "k": k},
        dtype=dtype,
        compute=declared_compute(dtype, compute),
        inputs=(
            TensorSpec(name="a", shape=(m, k), dtype=dtype),
            TensorSpec(name="b", shape=(k, n), dtype=dtype),
        ),
        outputs=(TensorSpec(name="out", shape=(m, n), dtype=dtype),),
        scalars=dict(scalars or {}),
    )


def _sized(sizes: tuple[int, int, int], dtype: DType) -> Case:
    return case(dict(zip("mnk", sizes, strict=True)), dtype)


def public_cases() -> tuple[Case, ...]:
    """Return small sizes in every dtype and the board in fp16."""
    small = [_sized(sizes, dtype) for sizes in SMALL for dtype in DTYPES]
    return (*small, *(_sized(sizes, DType.FP16) for sizes in BOARD))


def edge_cases() -> tuple[Case, ...]:
    """Return vectors, primes, tiles plus and minus one, a vocabulary, empty axes."""
    return tuple(_sized(sizes, dtype) for sizes in EDGES for dtype in DTYPES)


def sample_case(rng: random.Random) -> Case:
    """Return a random legal case of at most 100 MFLOP and a million outputs; every fourth has a vector in it."""
    if rng.random() < 1 / 4:  # often a path of its own, with sums as long as any
        long, k = hidden_extent(1, 1024, rng), hidden_extent(256, 4096, rng)
        return _sized((long, 1, k) if rng.random() < 1 / 2 else (1, long, k), rng.choice(DTYPES))
    k = hidden_extent(1, 4096, rng)
    m = hidden_extent(1, min(1024, 50_000_000 // k), rng)
    n = hidden_extent(1, max(1, min(50_000_000 // (k * m), (1 << 20) // m, (1 << 21) // k)), rng)
    return _sized((m, n, k), rng.choice(DTYPES))


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs on the CPU; sums stay within fp16 and, for integers, exact in the case's type."""
    rng = generator(seed)
    a, b = case.inputs
    if distribution is Distribution.INTEGER:
        largest = 4 if case.dtype is DType.BF16 else 8
        fits = exact_sum(case.dtype) // largest**2
        return {
            "a": draw_few_integers(a, rng, largest=largest, at_most=fits),
            "b": draw(b, distribution, rng, largest_integer=largest),
        }
    # One offset or sparse operand is enough: two offsets of 64 overflow fp16 at k = 16, and the product of
    # two sparse matrices is mostly exact zeros.
    one_sided = distribution not in (Distribution.SIGNED, Distribution.SCALED, Distribution.HEAVY_TAILED)
    tail = 1e3 if case.dtype is DType.FP32 else 64.0
    huge = 8000 / max(1, case.axes["k"]) ** 0.5 if case.dtype is DType.FP16 else None
    return {
        "a": draw(a, distribution, rng, tail=tail, huge=huge),
        "b": draw(b, Distribution.SIGNED if one_sided else distribution, rng, tail=tail),
    }


def _free(spec: TensorSpec, case: Case, rng: "Generator") -> "Tensor":
    """Return values a product with one must not change: any, or integers if factors may be rounded to tf32."""
    kind = Distribution.INTEGER if case.compute is Compute.TF32_OK else Distribution.SIGNED
    return draw(spec, kind, rng, largest_integer=1000)


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
    """Return integers, a selection of rows, a selection of columns, or a checkerboard: fp32 sums of them are exact.

    The second value tells by how many roundings an honest answer may miss: by none.
    """
    import torch

    rng = generator(seed)
    a, b = case.inputs
    if not a.numel or not b.numel or case.axes["k"] > 1 << 18:
        return None
    if seed % 4 == 1:
        return {"a": rounded(one_per_row(a, rng).float(), a), "b": _free(b, case, rng)}, 0
    if seed % 4 == 2:
        turned = b.model_copy(update={"shape": b.shape[::-1]})
        return {"a": _free(a, case, rng), "b": rounded(one_per_row(turned, rng).T.float(), b).contiguous()}, 0
    left, right = (draw(spec, Distribution.INTEGER, rng) for spec in (a, b))
    if seed % 4 == 3:
        board = 1.0 - 2.0 * ((torch.arange(a.shape[0])[:, None] + torch.arange(a.shape[1])) % 2)
        left = rounded(8 * board, a)
    return {"a": left, "b": right}, 0


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return inputs with special values, and where they are."""
    return planted(make_inputs(case, Distribution.SIGNED, seed), ("a", "b"), seed)


def other_scalars(case: Case) -> list[dict[str, bool | int | float]]:  # noqa: ARG001
    """Return scalars under which the same inputs have another answer: there are none."""
    return []


def growth_cases(dtype: DType) -> tuple[Case, ...]:
    """Return cases that differ only in the length of the reduction, shortest first."""
    return tuple(_sized((32, 64, k), dtype) for k in (64, 512, 4096))


def big_case(dtype: DType, elements: int) -> BigCase:
    """Return a product of a little more elements than that, of short sums."""
    return BigCase(_sized((slices_beyond(elements, 4096), 4096, 32), dtype), "m", 16)


def depth(case: Case) -> int:
    """Return how many roundings of fp32 may pile up in an element, in units of its error scale."""
    return case.axes["k"] + 2


def reference(
    inputs: Mapping[str, "Tensor"],
    scalars: Mapping[str, bool | int | float],  # noqa: ARG001
) -> tuple["Tensor", ...]:
    """Return the framework's own result in the precision of the inputs."""
    return (product(inputs["a"], inputs["b"]),)


def error_scale(
    inputs: Mapping[str, "Tensor"],
    scalars: Mapping[str, bool | int | float],  # noqa: ARG001
) -> tuple["Tensor", ...]:
    """Return the sum of |terms| of each dot product."""
    return (inputs["a"].double().abs() @ inputs["b"].double().abs(),)


def work(case: Case) -> Work:
    """Return bytes of a, b and out; a product and a sum per term."""
    a, b = case.inputs
    return Work(
        bytes_read=a.nbytes + b.nbytes,
        bytes_written=case.outputs[0].nbytes,
        flops=2 * case.axes["m"] * case.axes["n"] * case.axes["k"],
        compute_class=compute_class(case),
    )


def recognise(node: Any) -> Match | None:
    """Return a product with a matrix: `linear` without bias, `mm`, or `matmul` whose right factor has two axes."""
    steps: tuple[tuple[str, tuple[int, ...]], ...] = ()
    if called(node, "linear"):
        left, right, steps = node.args[0], node.args[1], (("t", ()),)
        if argument(node, 2, "bias") is not None:
            return None
    elif called(node, "mm", "matmul"):
        left, right = node.args[0], node.args[1]
    else:
        return None
    if not are_floats(node, left, right) or len(shape(right)) != 2 or not shape(left):
        return None
    k, m = shape(left)[-1], rows_of(left)
    n = shape(node)[-1] if len(shape(node)) == len(shape(left)) else 0
    dtype = kind(node)
    if dtype is None or not (m and n and k):
        return None
    made = case({"m": m, "n": n, "k": k}, dtype)
    return Match(made, {"a": flat(left, k), "b": View(right, steps)}, (shaped(node),))

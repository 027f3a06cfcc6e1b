"""Gated feed-forward layer: out = (silu(x gate^T) * (x up^T)) down^T."""

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
    generator,
    hidden_extent,
    planted,
    product,
    rounded,
    slices_beyond,
)
from kernelwright.ops._match import (
    are_floats,
    argument,
    called,
    commuted,
    extents,
    flat,
    halves,
    kind,
    rows_of,
    shape,
    shaped,
    uncast,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

SUMMARY = "(silu(x gate^T) * (x up^T)) down^T"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
BOARD = ((2048, 2048, 5504), (4096, 4096, 11008))
"""m, k, n of the H200 board."""
SMALL = ((4, 16, 32), (32, 64, 176), (128, 256, 688))
REQUIRED_LAYOUTS = (Layout.OFFSET, Layout.ROW_STRIDED)
"""Ways of lying in memory a candidate must serve; of others it may decline."""
ROUNDED_INTERMEDIATES = 4
"""The framework rounds gate, up, silu and their product to the type of the output."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {}
"""Null models that do not apply, and why."""
EDGES = (
    (1, 1, 1),
    (1, 64, 127),
    (1, 512, 1376),
    (7, 33, 65),
    (31, 97, 61),
    (129, 63, 130),
    (33, 1, 65),
    (67, 33, 1),
    (2, 1023, 131),
    (0, 16, 32),
)


def case(
    axes: Mapping[str, int],
    dtype: DType,
    scalars: Mapping[str, bool | int | float] | None = None,
    compute: Compute | None = None,
) -> Case:
    """Return the contiguous case of that size; `compute` may allow tf32 for fp32 inputs."""
    m, k, n = axes["m"], axes["k"], axes["n"]
    return Case(
        op="swiglu_mlp",
        axes={"m": m, "k": k, "n": n},
        dtype=dtype,
        compute=declared_compute(dtype, compute),
        inputs=(
            TensorSpec(name="x", shape=(m, k), dtype=dtype),
            TensorSpec(name="gate", shape=(n, k), dtype=dtype),
            TensorSpec(name="up", shape=(n, k), dtype=dtype),
            TensorSpec(name="down", shape=(k, n), dtype=dtype),
        ),
        outputs=(TensorSpec(name="out", shape=(m, k), dtype=dtype),),
        scalars=dict(scalars or {}),
    )


def _sized(sizes: tuple[int, int, int], dtype: DType) -> Case:
    return case(dict(zip("mkn", sizes, strict=True)), dtype)


def public_cases() -> tuple[Case, ...]:
    """Return small sizes in every dtype and the board in fp16."""
    small = [_sized(sizes, dtype) for sizes in SMALL for dtype in DTYPES]
    return (*small, *(_sized(sizes, DType.FP16) for sizes in BOARD))


def edge_cases() -> tuple[Case, ...]:
    """Return one token, primes, tiles plus and minus one, an empty batch."""
    return tuple(_sized(sizes, dtype) for sizes in EDGES for dtype in DTYPES)


def sample_case(rng: random.Random) -> Case:
    """Return a random legal case of at most 100 MFLOP and a million outputs."""
    k = hidden_extent(1, 1024, rng)
    n = hidden_extent(1, min(4096, (1 << 20) // k), rng)
    m = hidden_extent(1, max(1, min(512, 16_000_000 // (k * n))), rng)
    return _sized((m, k, n), rng.choice(DTYPES))


def _weight(spec: TensorSpec, rng: "Generator") -> "Tensor":
    """Return a normal weight matrix that keeps the magnitude of what it is applied to."""
    import torch

    return rounded(torch.randn(spec.shape, generator=rng) * max(1, spec.shape[-1]) ** -0.5, spec)


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs on the CPU; halves keep gate times up, a square, well inside fp16.

    Offsets are small: all rows share the sign of a gate's sum, and far below zero silu leaves nothing to compare.
    """
    rng = generator(seed)
    x, *weights = case.inputs
    half = case.dtype is not DType.FP32
    tail = min(1e3, 16 * max(1, case.axes["k"]) ** 0.5) if half else 1e3
    if distribution is Distribution.WIDE and half:
        tail = 64.0  # one value in twelve is that large
    inputs = {
        "x": draw(x, distribution, rng, offset=4.0 if half else 16.0, tail=tail, huge=16.0 if half else 1e4)
    }
    return inputs | {spec.name: _weight(spec, rng) for spec in weights}


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
    """Return a few ones in each row and gates so far above or below zero that silu is the identity or zero.

    Every intermediate is an integer that even bf16 holds. The second value tells by how many roundings an honest
    answer may miss.
    """
    import torch

    rng = generator(seed)
    x, gate, up, down = case.inputs
    if not all(spec.numel for spec in case.inputs) or case.axes["n"] > 1 << 14:
        return None
    ones = min(case.axes["k"], 4 if seed % 2 else 1)
    is_one = torch.rand(x.shape, generator=rng).argsort(-1) < ones
    level = torch.tensor([32.0, 64.0, -256.0])[torch.randint(3, (gate.shape[0], 1), generator=rng)]
    few = (torch.randint(-1, 2, spec.shape, generator=rng).float() for spec in (up, down))
    return {
        "x": rounded(is_one.float(), x),
        "gate": rounded(level.expand(gate.shape), gate),
        "up": rounded(next(few), up),
        "down": rounded(next(few), down),
    }, 4


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return inputs with special values, and where they are."""
    return planted(make_inputs(case, Distribution.SIGNED, seed), ("x", "gate", "up", "down"), seed)


def other_scalars(case: Case) -> list[dict[str, bool | int | float]]:  # noqa: ARG001
    """Return scalars under which the same inputs have another answer: there are none."""
    return []


def growth_cases(dtype: DType) -> tuple[Case, ...]:
    """Return cases that differ only in the length of the last reduction, shortest first."""
    return tuple(_sized((32, 64, n), dtype) for n in (64, 512, 4096))


def big_case(dtype: DType, elements: int) -> BigCase:
    """Return a case of a little more elements than that, many rows and few hidden columns."""
    return BigCase(_sized((slices_beyond(elements, 4096), 4096, 64), dtype), "m", 16)


def depth(case: Case) -> int:
    """Return how many roundings of fp32 may pile up in an element, in units of its error scale."""
    return case.axes["n"] + 4 + case.axes["k"]


def reference(
    inputs: Mapping[str, "Tensor"],
    scalars: Mapping[str, bool | int | float],  # noqa: ARG001
) -> tuple["Tensor", ...]:
    """Return the framework's own result; intermediates are rounded to the type of the inputs."""
    import torch.nn.functional as F

    x = inputs["x"]
    hidden = F.silu(product(x, inputs["gate"].T)) * product(x, inputs["up"].T)
    return (product(hidden, inputs["down"].T),)


def error_scale(
    inputs: Mapping[str, "Tensor"],
    scalars: Mapping[str, bool | int | float],  # noqa: ARG001
) -> tuple["Tensor", ...]:
    """Return the sum of |terms| of the last product, with those of the first two: all are sums of fp32."""
    import torch.nn.functional as F

    x, gate, up, down = (inputs[name].double() for name in ("x", "gate", "up", "down"))
    gated, lifted = x @ gate.T, x @ up.T
    silu, sigmoid = F.silu(gated), gated.sigmoid()
    slope = sigmoid * (1 + gated * (1 - sigmoid))
    inner = (slope * lifted).abs() * (x.abs() @ gate.abs().T) + silu.abs() * (x.abs() @ up.abs().T)
    # The framework rounds the gate to the type of the inputs, which silu amplifies far below zero.
    terms = (silu * lifted).abs() + (slope * gated * lifted).abs() + inner
    return (terms @ down.abs().T,)


def work(case: Case) -> Work:
    """Return bytes of x, the three weights and out; the FLOPs of the three products."""
    return Work(
        bytes_read=sum(spec.nbytes for spec in case.inputs),
        bytes_written=case.outputs[0].nbytes,
        flops=6 * case.axes["m"] * case.axes["k"] * case.axes["n"],
        compute_class=compute_class(case),
    )


def recognise(node: Any) -> Match | None:
    """Return the gated layer that ends in its last product; gate and up may be one weight, split behind the product."""
    hidden = _linear(node)
    if hidden is None:
        return None
    for gated, lifted in commuted(uncast(hidden[0]), "mul"):
        gate = _silu_of(uncast(gated))
        if gate is None:
            continue
        found = _separate(gate, lifted) or _merged(gate, lifted)
        if found is not None:
            return _match(node, found, hidden[1])
    return None


def _match(node: Any, found: tuple[Any, View, View], down: View) -> Match | None:
    x, gate, up = found
    k, n = shape(x)[-1], extents(down)[-1]
    dtype = kind(node)
    if not are_floats(node, x, gate.node, up.node, down.node) or dtype is None or extents(down) != (k, n):
        return None
    inputs = {"x": flat(x), "gate": gate, "up": up, "down": down}
    return Match(case({"m": rows_of(x), "k": k, "n": n}, dtype), inputs, (shaped(node),))


def _linear(node: Any) -> tuple[Any, View] | None:
    """Return input and weight, outputs by inputs, of a product without bias."""
    if called(node, "linear") and argument(node, 2, "bias") is None:
        return node.args[0], View(node.args[1])
    if not called(node, "matmul", "mm") or len(shape(node.args[1])) != 2:
        return None
    weight = node.args[1]
    return node.args[0], View(weight.args[0]) if called(weight, "t") else View(weight, (("t", ()),))


def _silu_of(node: Any) -> Any | None:
    """Return what silu is taken of, as `silu` or as x * sigmoid(x)."""
    if called(node, "silu"):
        return node.args[0]
    for x, other in commuted(node, "mul"):
        if called(other, "sigmoid") and other.args[0] is x:
            return x
    return None


def _separate(gate: Any, up: Any) -> tuple[Any, View, View] | None:
    first, second = _linear(gate), _linear(up)
    if (
        first is None
        or second is None
        or first[0] is not second[0]
        or extents(first[1]) != extents(second[1])
    ):
        return None
    return first[0], first[1], second[1]


def _merged(gate: Any, up: Any) -> tuple[Any, View, View] | None:
    """Return x and both halves of the one weight."""
    for first, second, place in ((gate, up, 0), (up, gate, 1)):
        both = halves(first, second)
        whole = _linear(both) if both is not None else None
        if whole is not None:
            weight, n = whole[1], extents(whole[1])[0] // 2
            lower, upper = (View(weight.node, (*weight.steps, ("narrow", (0, at, n)))) for at in (0, n))
            return whole[0], *((lower, upper) if place == 0 else (upper, lower))
    return None

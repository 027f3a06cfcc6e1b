"""Rotary position embedding: pairs of each head's elements are turned by the angle of their position."""

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernelwright.core.case import Case, Distribution, DType, Layout, TensorSpec
from kernelwright.core.roofline import Work
from kernelwright.core.verdict import NullModel
from kernelwright.ops._draw import (
    HUGE,
    compute_class,
    declared_compute,
    draw,
    generator,
    hidden_extent,
    planted,
    rounded,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

SUMMARY = "(x1 cos - x2 sin, x2 cos + x1 sin) over halves or interleaved pairs of each head"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
EXACT_ON_INTEGERS = True
"""Integer inputs have one right answer, to the bit."""
AXES = ("batch", "heads", "seq", "head_dim")
BOARD = ((2, 32, 1024, 128), (2, 32, 2048, 128), (2, 32, 4096, 128))
"""Sizes of the H200 board and of AutoKernel's table; half-rotated."""
SMALL = ((1, 2, 16, 16), (2, 4, 64, 64), (1, 8, 128, 128))
REQUIRED_LAYOUTS = (Layout.OFFSET, Layout.ROW_STRIDED)
"""Ways of lying in memory a candidate must serve; of others it may decline."""
ROUNDED_INTERMEDIATES = 2
"""Spelled in the framework's own operations, both products are rounded to the type of the inputs before the sum."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {}
"""Null models that do not apply, and why."""
EDGES = (
    (1, 1, 1, 2),
    (1, 1, 5, 64),
    (2, 3, 127, 128),
    (1, 5, 33, 80),
    (3, 1, 1023, 64),
    (1, 2, 9, 6),
    (2, 7, 1, 128),
    (1, 3, 65, 256),
    (0, 2, 4, 16),
    (1, 2, 0, 64),
)


def case(
    axes: Mapping[str, int], dtype: DType, scalars: Mapping[str, bool | int | float] | None = None
) -> Case:
    """Return the contiguous case of that size."""
    batch, heads, seq, head_dim = (axes[name] for name in AXES)
    if head_dim % 2:
        raise ValueError(f"rope turns pairs, so head_dim must be even; got {head_dim}")
    return Case(
        op="rope",
        axes={"batch": batch, "heads": heads, "seq": seq, "head_dim": head_dim},
        dtype=dtype,
        compute=declared_compute(dtype),
        inputs=(
            TensorSpec(name="x", shape=(batch, heads, seq, head_dim), dtype=dtype),
            TensorSpec(name="cos", shape=(seq, head_dim // 2), dtype=dtype),
            TensorSpec(name="sin", shape=(seq, head_dim // 2), dtype=dtype),
        ),
        outputs=(TensorSpec(name="out", shape=(batch, heads, seq, head_dim), dtype=dtype),),
        scalars={"interleaved": False, **(scalars or {})},
    )


def _sized(sizes: tuple[int, int, int, int], dtype: DType, interleaved: bool) -> Case:
    return case(dict(zip(AXES, sizes, strict=True)), dtype, {"interleaved": interleaved})


def public_cases() -> tuple[Case, ...]:
    """Return small sizes in every dtype, both layouts, and the board in fp16."""
    small = [_sized(sizes, dtype, paired) for sizes in SMALL for dtype in DTYPES for paired in (False, True)]
    return (*small, *(_sized(sizes, DType.FP16, False) for sizes in BOARD))


def edge_cases() -> tuple[Case, ...]:
    """Return one pair, odd numbers of pairs, one position, empty axes."""
    return tuple(
        _sized(sizes, dtype, paired) for sizes in EDGES for dtype in DTYPES for paired in (False, True)
    )


def sample_case(rng: random.Random) -> Case:
    """Return a random legal case of at most about a million elements."""
    head_dim = rng.choice((16, 32, 48, 64, 64, 80, 96, 128, 128, 256))
    seq = hidden_extent(1, 2048, rng)
    heads = hidden_extent(1, min(40, (1 << 20) // (head_dim * seq)), rng)
    batch = hidden_extent(1, min(8, (1 << 20) // (head_dim * seq * heads)), rng)
    return _sized((batch, heads, seq, head_dim), rng.choice(DTYPES), rng.random() < 0.5)


def _tables(case: Case, distribution: Distribution, rng: "Generator") -> tuple["Tensor", "Tensor"]:
    """Return cos and sin of random angles: true positions would make half of the entries one and zero."""
    import torch

    cos, sin = case.inputs[1:]
    if distribution is Distribution.INTEGER:
        return draw(cos, distribution, rng), draw(sin, distribution, rng)
    angle = 6.2831853 * torch.rand(cos.shape, generator=rng)
    return rounded(angle.cos(), cos), rounded(angle.sin(), sin)


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs on the CPU; integers up to 8 keep both terms within 128, exact in every type."""
    rng = generator(seed)
    x = draw(case.inputs[0], distribution, rng, huge=HUGE[case.dtype] / 2)
    cos, sin = _tables(case, distribution, rng)
    return {"x": x, "cos": cos, "sin": sin}


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
    """Return integers, or quarter turns, which move elements and change nothing but signs.

    The second value tells by how many roundings an honest answer may miss: by none.
    """
    import torch

    rng = generator(seed)
    x, cos, sin = case.inputs
    if not x.numel:
        return None
    if seed % 2 == 0:
        return make_inputs(case, Distribution.INTEGER, seed), 0
    angle = torch.randint(4, cos.shape, generator=rng)
    cosine, sine = torch.tensor([1.0, 0.0, -1.0, 0.0])[angle], torch.tensor([0.0, 1.0, 0.0, -1.0])[angle]
    turned = {"cos": rounded(cosine, cos), "sin": rounded(sine, sin)}
    return {"x": draw(x, Distribution.SIGNED, rng), **turned}, 0


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return inputs with special values, and where they are."""
    return planted(make_inputs(case, Distribution.SIGNED, seed), ("x", "cos", "sin"), seed)


def other_scalars(case: Case) -> list[dict[str, bool | int | float]]:
    """Return scalars under which the same inputs have another answer."""
    return [{"interleaved": not case.scalars["interleaved"]}] if case.axes["head_dim"] > 2 else []


def growth_cases(dtype: DType) -> tuple[Case, ...]:  # noqa: ARG001
    """Return cases of growing length: none, nothing is summed up."""
    return ()


def depth(case: Case) -> int:  # noqa: ARG001
    """Return how many roundings of fp32 may pile up in an element, in units of its error scale."""
    return 3


def _turn(x: "Tensor", cos: "Tensor", sin: "Tensor", interleaved: bool) -> "Tensor":
    import torch

    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)


def reference(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the rotation, halves in fp32 and rounded once: the framework has no fused op for it."""
    import torch

    x = inputs["x"]
    wide = torch.promote_types(x.dtype, torch.float32)
    tables = inputs["cos"].to(wide), inputs["sin"].to(wide)
    return (_turn(x.to(wide), *tables, bool(scalars["interleaved"])).to(x.dtype),)


def error_scale(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the sum of the two |terms| of each element."""
    import torch

    x, cos, sin = (inputs[name].double().abs() for name in ("x", "cos", "sin"))
    interleaved = bool(scalars["interleaved"])
    # Of magnitudes, a turn back adds up both terms in the first of each pair and a turn forth in the second.
    return (torch.maximum(_turn(x, cos, -sin, interleaved), _turn(x, cos, sin, interleaved)),)


def work(case: Case) -> Work:
    """Return bytes of x, cos, sin and out; two products and a sum per element."""
    return Work(
        bytes_read=sum(spec.nbytes for spec in case.inputs),
        bytes_written=case.outputs[0].nbytes,
        flops=3 * case.inputs[0].numel,
        compute_class=compute_class(case),
    )

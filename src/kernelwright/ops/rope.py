"""Rotary position embedding: pairs of each head's elements are turned by the angle of their position."""

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelwright.core.case import Case, Distribution, DType, Layout, TensorSpec
from kernelwright.core.ports import BigCase, Match, View
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
    slices_beyond,
)
from kernelwright.ops._match import (
    COPIES,
    RESHAPES,
    alternate,
    are_floats,
    argument,
    called,
    commuted,
    folded,
    halves,
    inside_cast,
    is_last,
    kind,
    number,
    packet,
    shape,
    uncast,
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
    head_dim = rng.choice((16, 32, 48, 64, 64, 80, 96, 128, 128, 160, 192, 256))
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


def big_case(dtype: DType, elements: int) -> BigCase:
    """Return a case of a little more elements than that, many sequences in a batch."""
    batch = slices_beyond(elements, 32 * 512 * 128)
    return BigCase(_sized((batch, 32, 512, 128), dtype, False), "batch", 1)


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


KEEPS_PAIRS = (
    "cos",
    "sin",
    "unsqueeze",
    "expand",
    "index",
    "embedding",
    "slice",
    "select",
    "_to_copy",
    *COPIES,
)
"""Operations after which the elements of a pair are equal if they were before."""


def recognise(node: Any) -> Match | None:
    """Return the rotation, written with the parts of each pair or with the vector turned by a right angle."""
    found = _by_parts(inside_cast(node)) or _by_turned_vector(inside_cast(node))
    if found is None:
        return None
    x, tables, interleaved, is_doubled = found
    x = uncast(x)
    if not are_floats(node, x) or len(shape(x)) != 4 or shape(x) != shape(node):
        return None
    swaps = _seq_first(shape(x), shape(tables[0]))
    views = [_table(uncast(table), x, swaps, interleaved, is_doubled) for table in tables]
    dtype = kind(node)
    if (
        swaps is None
        or None in views
        or dtype is None
        or not are_floats(x, *(view.node for view in views if view))
    ):
        return None
    turned = (("transpose", (1, 2)),) if swaps else ()
    batch, heads, seq, head_dim = shape(x) if not swaps else (shape(x)[place] for place in (0, 2, 1, 3))
    size = {"batch": batch, "heads": heads, "seq": seq, "head_dim": head_dim}
    inputs = {"x": View(x, turned)} | {
        name: view for name, view in zip(("cos", "sin"), views, strict=True) if view is not None
    }
    return Match(case(size, dtype, {"interleaved": interleaved}), inputs, (View(node, turned),))


def _source(first: Any, second: Any) -> tuple[Any, bool] | None:
    """Return what two parts are halves, or even and odd elements, of."""
    if (whole := halves(first, second)) is not None:
        return whole, False
    whole = alternate(first, second)
    return None if whole is None else (whole, True)


def _joined(node: Any) -> tuple[Any, Any, bool] | None:
    """Return two parts put together as halves or, interleaved, as even and odd elements."""
    if called(node, "cat") and len(node.args[0]) == 2 and is_last(node, argument(node, 1, "dim", 0)):
        return *node.args[0], False
    inner: Any = node.args[0] if called(node, *RESHAPES) else None
    if called(inner, "stack") and len(inner.args[0]) == 2 and is_last(inner, argument(inner, 1, "dim", 0)):
        return *inner.args[0], True
    return None


def _by_parts(node: Any) -> tuple[Any, tuple[Any, Any], bool, bool] | None:
    """Match (a cos - b sin, b cos + a sin) put together again."""
    parts = _joined(node)
    if parts is None or not called(parts[0], "sub") or not called(parts[1], "add"):
        return None
    kept, taken = parts[0].args[:2]
    for a, cos in commuted(kept, "mul"):
        for b, sin in commuted(taken, "mul"):
            source = _source(a, b)
            if source is None or source[1] != parts[2]:
                continue
            for left, right in commuted(parts[1], "add"):
                if {cos, b} == set(_operands(left)) and {sin, a} == set(_operands(right)):
                    return source[0], (cos, sin), parts[2], False
    return None


def _operands(node: Any) -> tuple[Any, ...]:
    return tuple(node.args[:2]) if called(node, "mul") else ()


def _by_turned_vector(node: Any) -> tuple[Any, tuple[Any, Any], bool, bool] | None:
    """Match x cos + turned(x) sin, where turned(x) is (-b, a) put together."""
    for straight, across in commuted(node, "add"):
        for turned, sin in commuted(across, "mul"):
            parts = _joined(turned)
            if parts is None or not called(parts[0], "neg"):
                continue
            source = _source(parts[1], parts[0].args[0])
            for x, cos in commuted(straight, "mul"):
                if source is not None and source == (x, parts[2]):
                    return x, (cos, sin), parts[2], True
    return None


def _seq_first(extents: tuple[int, ...], table: tuple[int, ...]) -> bool | None:
    """Tell whether the positions are axis 1 and not 2; None if the table belongs to neither alone."""
    padded = (1,) * (4 - len(table)) + table
    if len(padded) != 4 or padded[0] != 1:
        return None
    if padded[1] == 1 and padded[2] == extents[2]:
        return False
    return True if padded[2] == 1 and padded[1] == extents[1] else None


def _table(node: Any, x: Any, swaps: bool | None, interleaved: bool, is_doubled: bool) -> View | None:
    """Return cos or sin as positions by pairs; a table with an entry per element must be proven to repeat itself."""
    half, seq = shape(x)[-1] // 2, shape(x)[1 if swaps else 2]
    if not is_doubled:
        return View(node, (("reshape", (seq, half)),)) if shape(node)[-1] == half else None
    if shape(node)[-1] != 2 * half or not _repeats(node, interleaved):
        return None
    if interleaved:
        return View(node, (("reshape", (seq, half, 2)), ("select", (2, 0))))
    return View(node, (("narrow", (-1, 0, half)), ("reshape", (seq, half))))


def _repeats(node: Any, interleaved: bool) -> bool:
    """Tell whether both elements of every pair are the same: by how they were made, or by looking if it is no data."""
    known = folded(node)
    if known is not None:
        half = known.shape[-1] // 2
        parts = (
            (known[..., 0::2], known[..., 1::2]) if interleaved else (known[..., :half], known[..., half:])
        )
        return bool(parts[0].equal(parts[1]))
    while (made := _joined(node)) is None:
        is_scaled = called(node, "mul") and number(node.args[1]) is not None
        is_outer_part = called(node, "slice", "select") and not is_last(
            node.args[0], argument(node, 1, "dim", 0)
        )
        if not is_scaled and not is_outer_part and packet(node) not in KEEPS_PAIRS:
            return False
        node = node.args[0]
    return made[0] is made[1] and made[2] == interleaved

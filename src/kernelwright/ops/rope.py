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
    argument,
    called,
    commuted,
    entry,
    extents,
    folded,
    inside_cast,
    is_last,
    joined,
    kind,
    number,
    operands,
    packet,
    paired,
    same,
    shape,
    whole_of,
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
    (2, 1, 17, 160),
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
    """Return the rotation, written with the parts of each pair, the vector turned by a right angle, or complex numbers.

    Where tables and input are of different types, what is computed between the casts is the op.
    """
    inner = inside_cast(node)
    found = _by_parts(inner) or _by_turned_vector(inner) or _by_complex(inner)
    values = None if found is None else operands(node, found[0], *(table.node for table in found[1]))
    if found is None or values is None:
        return None
    x, tables = values[0], [View(one, old.steps) for one, old in zip(values[1:], found[1], strict=True)]
    _, _, interleaved, is_doubled = found
    if len(shape(x)) != 4 or shape(x) != shape(node):
        return None
    swaps = _seq_first(shape(x), extents(tables[0]))
    views = [_table(table, x, swaps, interleaved, is_doubled) for table in tables]
    dtype = kind(node)
    if swaps is None or None in views or dtype is None:
        return None
    turned = (("transpose", (1, 2)),) if swaps else ()
    batch, heads, seq, head_dim = shape(x) if not swaps else (shape(x)[place] for place in (0, 2, 1, 3))
    size = {"batch": batch, "heads": heads, "seq": seq, "head_dim": head_dim}
    inputs = {"x": View(x, turned)} | {
        name: view for name, view in zip(("cos", "sin"), views, strict=True) if view is not None
    }
    return Match(case(size, dtype, {"interleaved": interleaved}), inputs, (View(node, turned),))


Found = tuple[Any, tuple[View, View], bool, bool]
"""Node of x, both tables, whether pairs are interleaved, and whether a table has an entry per element."""


def _by_parts(node: Any) -> Found | None:
    """Match (a cos - b sin, b cos + a sin) put together again."""
    parts = joined(node)
    if parts is None or not called(parts[0], "sub") or not called(parts[1], "add"):
        return None
    kept, taken = parts[0].args[:2]
    for a, cos in commuted(kept, "mul"):
        for b, sin in commuted(taken, "mul"):
            source = whole_of(a, b)
            if source is None or source[1] != parts[2]:
                continue
            for left, right in commuted(parts[1], "add"):
                if _is_product(left, b, cos) and _is_product(right, a, sin):
                    return source[0], (_entry(cos), _entry(sin)), parts[2], False
    return None


def _is_product(node: Any, first: Any, second: Any) -> bool:
    return any(same(one, first) and same(other, second) for one, other in commuted(node, "mul"))


def _entry(table: Any) -> View:
    """Return a table, which may be one of two that lie side by side."""
    found = entry(table)
    return View(table) if found is None else View(found[0], (("select", (-1, found[1])),))


def _by_complex(node: Any) -> Found | None:
    """Match pairs as complex numbers, multiplied by a table of them; `model/capture` gives that table real parts."""
    turned: Any = node.args[0] if called(node, *RESHAPES) else None
    for pairs, table in commuted(turned.args[0], "mul") if called(turned, "view_as_real") else ():
        if called(pairs, "view_as_complex") and called(table, "view_as_complex"):
            x, parts = paired(pairs.args[0]), table.args[0]
            if x is not None and shape(x) == shape(node):
                return (
                    x,
                    (View(parts, (("select", (-1, 0)),)), View(parts, (("select", (-1, 1)),))),
                    True,
                    False,
                )
    return None


def _by_turned_vector(node: Any) -> Found | None:
    """Match x cos + turned(x) sin, where turned(x) is (-b, a) put together."""
    for straight, across in commuted(node, "add"):
        for turned, sin in commuted(across, "mul"):
            parts = joined(turned)
            if parts is None or not called(parts[0], "neg"):
                continue
            source = whole_of(parts[1], parts[0].args[0])
            for x, cos in commuted(straight, "mul"):
                if source is not None and source == (x, parts[2]):
                    return x, (View(cos), View(sin)), parts[2], True
    return None


def _seq_first(extents: tuple[int, ...], table: tuple[int, ...]) -> bool | None:
    """Tell whether the positions are axis 1 and not 2; None if the table belongs to neither alone."""
    padded = (1,) * (4 - len(table)) + table
    if len(padded) != 4 or padded[0] != 1:
        return None
    if padded[1] == 1 and padded[2] == extents[2]:
        return False
    return True if padded[2] == 1 and padded[1] == extents[1] else None


def _table(table: View, x: Any, swaps: bool | None, interleaved: bool, is_doubled: bool) -> View | None:
    """Return cos or sin as positions by pairs; a table with an entry per element must be proven to repeat itself.

    Every other element of a table is copied together: it is small, and kernels read it as rows.
    """
    half, seq, cols = shape(x)[-1] // 2, shape(x)[1 if swaps else 2], extents(table)[-1]
    rows, gathered = ("reshape", (seq, half)), ("contiguous", ())
    if not is_doubled:
        steps = (*table.steps, rows, gathered) if table.steps else (rows,)
        return View(table.node, steps) if cols == half else None
    if cols != 2 * half or not _repeats(table.node, interleaved):
        return None
    if interleaved:
        return View(table.node, (("reshape", (seq, half, 2)), ("select", (2, 0)), gathered))
    return View(table.node, (("narrow", (-1, 0, half)), rows))


def _repeats(node: Any, interleaved: bool) -> bool:
    """Tell whether both elements of every pair are the same: by how they were made, or by looking if it is no data."""
    known = folded(node)
    if known is not None:
        half = known.shape[-1] // 2
        parts = (
            (known[..., 0::2], known[..., 1::2]) if interleaved else (known[..., :half], known[..., half:])
        )
        return bool(parts[0].equal(parts[1]))
    while (made := joined(node)) is None:
        is_scaled = called(node, "mul") and number(node.args[1]) is not None
        is_outer_part = called(node, "slice", "select") and not is_last(
            node.args[0], argument(node, 1, "dim", 0)
        )
        if not is_scaled and not is_outer_part and packet(node) not in KEEPS_PAIRS:
            return False
        node = node.args[0]
    return made[0] is made[1] and made[2] == interleaved

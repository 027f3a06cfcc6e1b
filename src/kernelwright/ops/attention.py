"""Scaled dot-product attention: out = softmax(scale q k^T) v, causal or not, with grouped-query heads."""

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelwright.core.case import Case, Compute, Distribution, DType, Layout, TensorSpec
from kernelwright.core.ports import BigCase, Match, View
from kernelwright.core.roofline import Work
from kernelwright.core.verdict import NullModel
from kernelwright.ops._attention_forms import forms, is_causal
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
from kernelwright.ops._match import extents, kind, operands, shape, shaped

if TYPE_CHECKING:
    from torch import Generator, Tensor

SUMMARY = "softmax(scale q k^T) v per head, causal or not, kv heads shared by groups of query heads"
DTYPES = (DType.FP32, DType.FP16, DType.BF16)
AXES = ("batch", "heads", "kv_heads", "seq", "kv_seq", "head_dim")
BOARD = (
    (2, 32, 32, 1024, 1024, 64),
    (2, 32, 32, 2048, 2048, 64),
    (1, 32, 32, 4096, 4096, 128),
    (4, 32, 32, 4096, 4096, 128),
)
"""Sizes of the H200 board, all causal."""
SMALL = ((1, 2, 2, 16, 16, 16), (2, 4, 2, 64, 64, 64), (1, 4, 4, 128, 128, 128))
REQUIRED_LAYOUTS = (Layout.OFFSET, Layout.ROW_STRIDED)
"""Ways of lying in memory a candidate must serve; of others it may decline."""
ROUNDED_INTERMEDIATES = 1
"""The framework rounds the exponentials to the type of the output before they meet the values."""
NULL_EXCEPTIONS: Mapping[NullModel, str] = {}
"""Null models that do not apply, and why."""
OUT_OF_REACH = 110.0
"""Distance of two scores at which the exponential of the lower is zero in fp32."""
EDGES = (
    (1, 1, 1, 1, 1, 16, False),
    (1, 1, 1, 1, 1, 64, True),
    (2, 8, 2, 1, 127, 64, False),
    (1, 4, 4, 1, 1023, 128, False),
    (1, 3, 1, 33, 65, 64, False),
    (1, 6, 3, 17, 31, 32, False),
    (1, 2, 2, 63, 63, 64, True),
    (1, 2, 1, 129, 129, 64, True),
    (1, 1, 1, 257, 257, 128, True),
    (2, 2, 2, 65, 1, 64, False),
    (0, 2, 2, 8, 8, 16, False),
    (1, 2, 2, 0, 5, 64, False),
)


def case(
    axes: Mapping[str, int],
    dtype: DType,
    scalars: Mapping[str, bool | int | float] | None = None,
    compute: Compute | None = None,
) -> Case:
    """Return the contiguous case of that size; `compute` may allow tf32 for fp32 inputs."""
    batch, heads, kv_heads, seq, kv_seq, head_dim = (axes[name] for name in AXES)
    chosen = {"causal": False, "scale": head_dim**-0.5, **(scalars or {})}
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"attention needs heads a multiple of kv_heads; got {heads} and {kv_heads}")
    if kv_seq < 1 or not 8 <= head_dim <= 256 or head_dim % 8:
        raise ValueError(
            f"attention needs a key and head_dim in 8, 16 .. 256; got {kv_seq} keys of {head_dim}"
        )
    if chosen["causal"] and seq != kv_seq:
        raise ValueError(f"causal attention needs seq equal to kv_seq; got {seq} and {kv_seq}")
    keys = (batch, kv_heads, kv_seq, head_dim)
    return Case(
        op="attention",
        axes={name: axes[name] for name in AXES},
        dtype=dtype,
        compute=declared_compute(dtype, compute),
        inputs=(
            TensorSpec(name="q", shape=(batch, heads, seq, head_dim), dtype=dtype),
            TensorSpec(name="k", shape=keys, dtype=dtype),
            TensorSpec(name="v", shape=keys, dtype=dtype),
        ),
        outputs=(TensorSpec(name="out", shape=(batch, heads, seq, head_dim), dtype=dtype),),
        scalars=chosen,
    )


def _sized(sizes: tuple[int, ...], dtype: DType, causal: bool) -> Case:
    return case(dict(zip(AXES, sizes, strict=True)), dtype, {"causal": causal})


def public_cases() -> tuple[Case, ...]:
    """Return small sizes in every dtype, causal and not, and the causal board in fp16."""
    small = [_sized(sizes, dtype, causal) for sizes in SMALL for dtype in DTYPES for causal in (False, True)]
    return (*small, *(_sized(sizes, DType.FP16, True) for sizes in BOARD))


def edge_cases() -> tuple[Case, ...]:
    """Return decoding, one key, odd numbers of keys, shared kv heads, tiles plus or minus one, empty axes."""
    return tuple(_sized(tuple(sizes), dtype, causal) for *sizes, causal in EDGES for dtype in DTYPES)


def sample_case(rng: random.Random) -> Case:
    """Return a random legal case of at most 100 MFLOP and a million outputs."""
    head_dim = rng.choice((16, 32, 64, 64, 128, 128))
    kv_heads, group = rng.choice((1, 2, 3, 4)), rng.choice((1, 1, 2, 4))
    causal, decoding = rng.random() < 0.4, rng.random() < 0.15
    budget = 25_000_000 // (head_dim * kv_heads * group)
    if causal:
        seq = kv_seq = hidden_extent(1, min(1024, int(budget**0.5)), rng)
    else:
        seq = 1 if decoding else hidden_extent(1, 512, rng)
        kv_seq = hidden_extent(1, max(1, min(4096, budget // seq)), rng)
    batch = hidden_extent(1, max(1, min(3, budget // (seq * kv_seq))), rng)
    return case(
        dict(zip(AXES, (batch, kv_heads * group, kv_heads, seq, kv_seq, head_dim), strict=True)),
        rng.choice(DTYPES),
        {"causal": causal, "scale": rng.uniform(0.5, 1.5) * head_dim**-0.5},
    )


def make_inputs(case: Case, distribution: Distribution, seed: int) -> dict[str, "Tensor"]:
    """Return fresh inputs on the CPU whose scores an fp32 exponential can tell apart.

    Queries and keys at an offset of 4 put all scores near 16 sqrt(head_dim), where an exponential without the
    maximum subtracted overflows; at 1000 the scores' own rounding would exceed their differences.
    """
    rng = generator(seed)
    q, k, v = case.inputs
    scored = Distribution.SIGNED if distribution is Distribution.NEAR_MAX else distribution
    # Wide scores and wide values together: the fp16 of a small weight times a large value is the framework's own loss.
    valued = Distribution.SIGNED if distribution is Distribution.WIDE else distribution
    return {
        "q": draw(q, scored, rng, largest_integer=2, offset=4.0, tail=8.0),
        "k": draw(k, scored, rng, largest_integer=2, offset=4.0, tail=8.0),
        "v": draw(v, valued, rng),
    }


def _matched(case: Case, rng: "Generator") -> tuple["Tensor", "Tensor"]:
    """Return queries and keys such that every query sees one random key and no other: keys are binary numbers."""
    import torch

    q, k, _ = case.inputs
    batch, heads, seq, head_dim = q.shape
    height = 2.0 ** math.ceil(math.log2(OUT_OF_REACH / 2 / float(case.scalars["scale"])) / 2)
    numbers = torch.arange(k.shape[2])
    codes = height * (1.0 - 2.0 * ((numbers[:, None] >> torch.arange(head_dim).clamp_max(62)) & 1))
    last = torch.arange(seq) if case.scalars["causal"] else torch.full((seq,), k.shape[2] - 1)
    chosen = (torch.rand((batch, heads, seq), generator=rng) * (last + 1)).long()
    return codes[chosen], codes.expand(k.shape)


def exact_inputs(case: Case, seed: int) -> tuple[dict[str, "Tensor"], int] | None:
    """Return queries of zero, whose answer is the mean of the visible values, or queries that pick one key each.

    The second value tells by how many roundings an honest answer may miss.
    """
    import torch

    rng = generator(seed)
    q, k, v = case.inputs
    if not q.numel:
        return None
    if seed % 2 == 0:
        whole = draw(v, Distribution.INTEGER, rng)
        return {
            "q": torch.zeros_like(draw(q, Distribution.SIGNED, rng)),
            "k": draw(k, Distribution.SIGNED, rng),
            "v": whole,
        }, 8
    if float(case.scalars["scale"]) < 0.02 or k.shape[2] > 1 << min(30, k.shape[3]):
        return None
    query, key = _matched(case, rng)
    return {
        "q": rounded(query, q),
        "k": rounded(key, k).contiguous(),
        "v": draw(v, Distribution.SIGNED, rng),
    }, 8


def special_inputs(case: Case, seed: int) -> list[tuple[str, dict[str, "Tensor"]]]:
    """Return inputs with special values; what a mask times NaN is, is left open: causal keys and values stay plain."""
    names = ("q",) if case.scalars["causal"] else ("q", "k", "v")
    return planted(make_inputs(case, Distribution.SIGNED, seed), names, seed)


def other_scalars(case: Case) -> list[dict[str, bool | int | float]]:
    """Return scalars under which the same inputs have another answer."""
    scale = float(case.scalars["scale"])
    # Under a negative one the largest score is the least product: a maximum taken too early is found out.
    found: list[dict[str, bool | int | float]] = [{"scale": 1.75 * scale}, {"scale": -scale}]
    if case.axes["seq"] == case.axes["kv_seq"]:
        found.append({"causal": not case.scalars["causal"]})
    return found if case.axes["kv_seq"] > 1 else []


def growth_cases(dtype: DType) -> tuple[Case, ...]:
    """Return cases that differ only in the number of keys, fewest first."""
    return tuple(_sized((1, 2, 2, 16, keys, 64), dtype, False) for keys in (64, 512, 4096))


def big_case(dtype: DType, elements: int) -> BigCase:
    """Return a case of a little more queries than that, one head of few keys for all heads of a sequence."""
    batch = slices_beyond(elements, 32 * 512 * 128)
    return BigCase(_sized((batch, 32, 1, 512, 64, 128), dtype, False), "batch", 1)


def depth(case: Case) -> int:
    """Return how many roundings of fp32 may pile up in an element, in units of its error scale."""
    # A score rounds `head_dim` times and counts in the scale with a share only.
    return case.axes["kv_seq"] + 2 + case.axes["head_dim"]


def _half_on_cpu(q: "Tensor", k: "Tensor", v: "Tensor", causal: bool, scale: float) -> "Tensor":
    """Return what the fused op does to halves: fp32 scores and sums, exponentials rounded to the input type.

    The fused op itself is not called: its bf16 kernel on CPUs shares the illegal instruction of `product`.
    """
    import torch

    groups = q.shape[1] // k.shape[1]
    keys, values = (t.float().repeat_interleave(groups, dim=1) for t in (k, v))
    scores = (q.float() @ keys.transpose(-1, -2)) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return ((weights.to(q.dtype).float() @ values) / weights.sum(-1, keepdim=True)).to(q.dtype)


def _in_float64(q: "Tensor", k: "Tensor", v: "Tensor", causal: bool, scale: float) -> "Tensor":
    """Return the formula itself, a head at a time: the fused op on CPUs answers a NaN in a short row with zeros."""
    import torch

    result, groups = torch.empty_like(q), q.shape[1] // k.shape[1]
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if causal else None
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            scores = q[batch, head] @ k[batch, head // groups].T * scale
            if hidden is not None:
                scores = scores.masked_fill(hidden, float("-inf"))
            result[batch, head] = scores.softmax(-1) @ v[batch, head // groups]
    return result


def reference(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the framework's own result in the precision of the inputs."""
    import torch.nn.functional as F

    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    causal, scale = bool(scalars["causal"]), float(scalars["scale"])
    if q.numel() == 0:
        return (q.clone(),)  # the fused CUDA op answers with nothing at all
    if q.device.type == "cpu" and q.dtype.itemsize == 2:
        return (_half_on_cpu(q, k, v, causal, scale),)
    if q.dtype.itemsize == 8:
        return (_in_float64(q, k, v, causal, scale),)
    return (F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True),)


def error_scale(
    inputs: Mapping[str, "Tensor"], scalars: Mapping[str, bool | int | float]
) -> tuple["Tensor", ...]:
    """Return the sum of |terms| over the keys, each with its score's own sum of |terms|: both are sums of fp32."""
    import torch

    q, k, v = (inputs[name].double() for name in ("q", "k", "v"))
    causal, scale = bool(scalars["causal"]), float(scalars["scale"])
    result = torch.empty_like(q)
    groups = q.shape[1] // k.shape[1]
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if causal else None
    for batch in range(
        q.shape[0]
    ):  # one head at a time: all score matrices of a board case are 17 GB in float64
        for head in range(q.shape[1]):
            query, key, value = q[batch, head], k[batch, head // groups], v[batch, head // groups]
            scores = query @ key.T * scale
            if hidden is not None:
                scores = scores.masked_fill(hidden, float("-inf"))
            # A key at infinity has no weight, or makes the whole row NaN.
            magnitude = (query.abs() @ key.abs().T * abs(scale)).nan_to_num(0.0, posinf=0.0)
            weights = scores.softmax(-1) * (1 + magnitude)
            result[batch, head] = weights @ value.abs()
    return (result,)


def work(case: Case) -> Work:
    """Return bytes of q, k, v and out; two products of the score matrix, half of it if causal."""
    batch, heads, _, seq, kv_seq, head_dim = (case.axes[name] for name in AXES)
    flops = 4 * batch * heads * seq * kv_seq * head_dim
    return Work(
        bytes_read=sum(spec.nbytes for spec in case.inputs),
        bytes_written=case.outputs[0].nbytes,
        flops=flops // 2 if case.scalars["causal"] else flops,
        compute_class=compute_class(case),
    )


def recognise(node: Any) -> Match | None:
    """Return attention as the fused operation or written out; a mask only if it depends on no data and is causal."""
    found = forms(node)
    if found is None:
        return None
    query, keys, values, mask, is_causal_call, scale = found
    causal: bool | None = is_causal_call
    nodes = operands(node, query, keys.node, values.node)
    if nodes is None or len(shape(query)) not in (3, 4):
        return None
    # Heads of all sequences in one batch are heads of one sequence.
    joined = (("unsqueeze", (0,)),) if len(shape(query)) == 3 else ()
    steps = ((), keys.steps, values.steps)
    q, k, v = (View(one, own + joined) for one, own in zip(nodes, steps, strict=True))
    if {len(extents(view)) for view in (q, k, v)} != {4}:
        return None
    batch, heads, seq, head_dim = extents(q)
    kv_heads, kv_seq = extents(k)[1:3]
    if mask is not None and (causal := is_causal(mask, (seq, kv_seq))) is None:
        return None
    size = dict(zip(AXES, (batch, heads, kv_heads, seq, kv_seq, head_dim), strict=True))
    dtype = kind(node)
    is_legal = kv_seq and 8 <= head_dim <= 256 and not head_dim % 8 and not (causal and seq != kv_seq)
    is_one = extents(v) == extents(k) and extents(k)[0] == batch and extents(k)[3] == head_dim
    if not is_legal or dtype is None or not is_one or not kv_heads or heads % kv_heads:
        return None
    made = case(size, dtype, {"causal": bool(causal), "scale": head_dim**-0.5 if scale is None else scale})
    out = shaped(node) if joined else View(node)
    return Match(made, {"q": q, "k": k, "v": v}, (out,), () if mask is None else mask.read)

# ruff: noqa: F821, RUF005 (`plan` is in a language of its own, kernels are in theirs)
"""Rotary position embedding over halves or interleaved pairs of each head; fp32 arithmetic, one rounding.

Declared layout: last axis of x, cos, sin and out contiguous, any other strides.

A program turns several heads at several positions. Rows of the same position stand side by side, so that the lanes of
a warp ask for the same cosines and sines, which come through cache once. Halves are read as two wide rows; interleaved
pairs as one, parted and joined in registers.
"""

import triton
import triton.language as tl

PARAMS = {
    "tile_heads": [4, 2, 8, 1],
    "warps": [4, 8, 2],
    "lane_vectors": [2, 1, 4],
}


@triton.jit
def rope_rows(
    x, cos, sin, out, heads, seq, pairs,
    x_batch, x_head, x_seq, cos_seq, sin_seq, out_batch, out_head, out_seq,
    INTERLEAVED: tl.constexpr, HEADS: tl.constexpr, SEQ: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Turn HEADS heads at SEQ positions."""
    KIND: tl.constexpr = out.dtype.element_ty
    blocks, groups = tl.cdiv(seq, SEQ), tl.cdiv(heads, HEADS)
    program = tl.program_id(0)
    batch = (program // (blocks * groups)).to(tl.int64)
    row = tl.arange(0, SEQ * HEADS)
    head = program // blocks % groups * HEADS + row % HEADS
    place = program % blocks * SEQ + row // HEADS
    here = ((head < heads) & (place < seq))[:, None]
    head, place = head.to(tl.int64)[:, None], place.to(tl.int64)[:, None]
    source = x + batch * x_batch + head * x_head + place * x_seq
    target = out + batch * out_batch + head * out_head + place * out_seq
    pair = tl.arange(0, PAIRS)[None, :]
    inside = here & (pair < pairs)
    c_at, s_at = cos + place * cos_seq + pair, sin + place * sin_seq + pair
    if INTERLEAVED:
        element = tl.arange(0, 2 * PAIRS)[None, :]
        all_inside = here & (element < 2 * pairs)
        both = tl.load(source + element, mask=all_inside, other=0.0).to(tl.float32)
        c = tl.load(c_at, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(s_at, mask=inside, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(both, [SEQ * HEADS, PAIRS, 2]))
        turned = tl.join(first * c - second * s, second * c + first * s)
        tl.store(target + element, tl.reshape(turned, [SEQ * HEADS, 2 * PAIRS]).to(KIND), mask=all_inside)
    else:
        first = tl.load(source + pair, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + pairs + pair, mask=inside, other=0.0).to(tl.float32)
        c = tl.load(c_at, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(s_at, mask=inside, other=0.0).to(tl.float32)
        tl.store(target + pair, (first * c - second * s).to(KIND), mask=inside)
        tl.store(target + pairs + pair, (second * c + first * s).to(KIND), mask=inside)


def plan(case, params, device):
    """Return the launches of a case."""
    x, cos, sin, out = case.tensors.x, case.tensors.cos, case.tensors.sin, case.tensors.out
    batch, heads, seq, head_dim = case.axes.batch, case.axes.heads, case.axes.seq, case.axes.head_dim
    dense = (
        x.strides[3] == 1 and out.strides[3] == 1 and (head_dim == 2 or cos.strides[1] + sin.strides[1] == 2)
    )
    if not dense:
        return {"unsupported": "the last axis of x, cos, sin and out must be contiguous"}
    wave = 64 if device.arch in ("gfx90a", "gfx942", "gfx950") else 32
    pairs = head_dim // 2
    block_pairs = next_power_of_2(max(1, pairs))
    # Pairs of a lane: whole 16-byte vectors of each half; interleaved, a vector holds half as many.
    lane_pairs = params.lane_vectors * 16 // x.itemsize // (2 if case.scalars.interleaved else 1)
    tile_rows = max(1, params.warps * wave * lane_pairs // block_pairs)
    block_heads = min(params.tile_heads, next_power_of_2(max(1, heads)), tile_rows)
    block_seq = min(next_power_of_2(max(1, seq)), tile_rows // block_heads)
    strides = [x.strides[0], x.strides[1], x.strides[2], cos.strides[0], sin.strides[0]]
    out_strides = [out.strides[0], out.strides[1], out.strides[2]]
    return {
        "launches": [
            {
                "kernel": "rope_rows",
                "grid": (batch * cdiv(heads, block_heads) * cdiv(seq, block_seq) if head_dim > 0 else 0,),
                "args": ["x", "cos", "sin", "out", heads, seq, pairs] + strides + out_strides,
                "constants": {
                    "INTERLEAVED": case.scalars.interleaved,
                    "HEADS": block_heads,
                    "SEQ": block_seq,
                    "PAIRS": block_pairs,
                },
                "num_warps": min(
                    params.warps, max(1, block_heads * block_seq * block_pairs // (wave * lane_pairs))
                ),
            }
        ]
    }

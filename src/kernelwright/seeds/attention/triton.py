# ruff: noqa: F821, RUF005, SIM108 (`plan` is in a language of its own, kernels are in theirs)
"""Attention out = softmax(scale q k^T) v per head, causal or not, kv heads shared by groups of query heads.

Declared layout: last axis of q, k, v and out contiguous, any other strides.

One program per head and block of queries walks over the keys with a running maximum and sum (base 2), the weights
rounded to the input type for the second product. Causal programs stop at the diagonal, mask only the blocks that
cross it, and the longest start first. Halves on Hopper and later bring keys and values through tensor descriptors;
fp32 products are fp32, never tf32.
"""

import triton
import triton.language as tl

PARAMS = {
    "block_m": [0, 128, 64, 32, 16],
    "block_n": [0, 64, 128, 32, 16],
    "num_warps": [0, 4, 8, 2],
    "num_stages": [3, 2, 4],
    "described": [True, False],
    "maxnreg": [0, 128],
}

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def attention_block(
    q, k, v, out, heads, group, seq, kv_seq, head_dim, scale,
    q_batch, q_head, q_seq, k_batch, k_head, k_seq, v_batch, v_head, v_seq, out_batch, out_head, out_seq,
    CAUSAL: tl.constexpr, FLIPPED: tl.constexpr, DESCRIBED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Attend from BLOCK_M queries of one head."""
    blocks = tl.cdiv(seq, BLOCK_M)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks
    batch = (program // blocks // heads).to(tl.int64)
    head = (program // blocks % heads).to(tl.int64)
    k_start = k + batch * k_batch + head // group * k_head
    v_start = v + batch * v_batch + head // group * v_head
    rows, dim = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, DIM)
    inside = (rows < seq)[:, None] & (dim < head_dim)[None, :]
    wide_rows = rows.to(tl.int64)[:, None]
    query = tl.load(
        q + batch * q_batch + head * q_head + wide_rows * q_seq + dim[None, :], mask=inside, other=0.0
    )
    if DESCRIBED:
        keys = tl.make_tensor_descriptor(k_start, [kv_seq, head_dim], [k_seq, 1], [BLOCK_N, DIM])
        values = tl.make_tensor_descriptor(v_start, [kv_seq, head_dim], [v_seq, 1], [BLOCK_N, DIM])
    else:
        col = tl.arange(0, BLOCK_N)[:, None]
        keys = k_start + col * k_seq + dim[None, :]
        values = v_start + col * v_seq + dim[None, :]

    end = tl.minimum(block * BLOCK_M + BLOCK_M, kv_seq) if CAUSAL else kv_seq
    # Keys that every query of the block sees, in whole blocks; the rest is masked.
    clear = (block * BLOCK_M if CAUSAL else kv_seq) // BLOCK_N * BLOCK_N
    sums = tl.zeros([BLOCK_M, DIM], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    scale *= LOG2_E
    for start in tl.range(0, end, BLOCK_N):
        place = start + tl.arange(0, BLOCK_N)
        if DESCRIBED:
            key = keys.load([start, 0])
        else:
            known = (place < kv_seq)[:, None] & (dim < head_dim)[None, :]
            key = tl.load(keys + start * k_seq, mask=known, other=0.0)
        score = tl.dot(query, key.T, input_precision="ieee")
        if FLIPPED:
            score = -score
        if start >= clear:
            seen = place[None, :] <= rows[:, None] if CAUSAL else (place < kv_seq)[None, :]
            score = tl.where(seen, score, float("-inf"))
        fresh = tl.maximum(peak, tl.max(score, axis=1) * scale)
        weight = tl.exp2(score * scale - fresh[:, None])
        fade = tl.exp2(peak - fresh)
        total = total * fade + tl.sum(weight, axis=1)
        sums = sums * fade[:, None]
        if DESCRIBED:
            value = values.load([start, 0])
        else:
            value = tl.load(values + start * v_seq, mask=known, other=0.0)
        sums = tl.dot(weight.to(value.dtype), value, sums, input_precision="ieee")
        peak = fresh
    result = (sums * (1.0 / total)[:, None]).to(out.dtype.element_ty)
    tl.store(
        out + batch * out_batch + head * out_head + wide_rows * out_seq + dim[None, :], result, mask=inside
    )


def plan(case, params, device):
    """Return the launches of a case."""
    q, k, v, out = case.tensors.q, case.tensors.k, case.tensors.v, case.tensors.out
    batch, heads, kv_heads = case.axes.batch, case.axes.heads, case.axes.kv_heads
    seq, kv_seq, head_dim = case.axes.seq, case.axes.kv_seq, case.axes.head_dim
    if q.strides[3] != 1 or k.strides[3] != 1 or v.strides[3] != 1 or out.strides[3] != 1:
        return {"unsupported": "the last axis of q, k, v and out must be contiguous"}
    if head_dim > 256:
        return {"unsupported": "head_dim above 256"}
    is_half = q.itemsize == 2
    dim = max(16, next_power_of_2(head_dim))
    k_fits = k.strides[2] % 8 + k.strides[1] % 8 + k.strides[0] % 8 + k.offset % 8 == 0
    v_fits = v.strides[2] % 8 + v.strides[1] % 8 + v.strides[0] % 8 + v.offset % 8 == 0
    has_descriptors = device.arch in ("sm_90", "sm_100", "sm_103", "sm_120")
    described = params.described and has_descriptors and is_half and k_fits and v_fits and head_dim % 8 == 0
    # fp32 has no tensor cores to fill: its tiles are small, and smaller still where that leaves programs wanting.
    usual_m = 128 if is_half else 32 if 2 * batch * heads * cdiv(seq, 32) >= device.units else 16
    asked_m = params.block_m if params.block_m > 0 else usual_m
    large_m = max(64, asked_m if dim <= 128 else 64) if is_half else min(64, asked_m)
    block_m = min(large_m, max(16, next_power_of_2(max(seq, 1))))
    # Up to 64 wide two blocks share a multiprocessor and one's exponentials hide behind the other's products; at 128
    # there is room for one, and it wants long products.
    usual_n = 64 if dim <= 64 else 128 if described and dim == 128 else 32
    asked_n = params.block_n if params.block_n > 0 else usual_n if is_half else 32
    large_n = max(32, asked_n) if is_half else min(64, asked_n)
    block_n = min(large_n, max(16, next_power_of_2(kv_seq)))
    # Four warps hold 128 queries only of heads up to 64 wide.
    usual_warps = 8 if block_m == 128 or (not is_half and block_m == 32 and dim > 64) else 4
    least_warps = 8 if block_m == 128 and dim > 64 else 4 if is_half else 2
    chooses_warps = params.num_warps > 0 and (block_m == 128 or not is_half)
    warps = max(least_warps, params.num_warps if chooses_warps else usual_warps)
    # Keys and values of every stage, and the queries.
    stage_bytes, query_bytes = 2 * block_n * dim * q.itemsize, block_m * dim * q.itemsize
    stages = max(1, min(params.num_stages, (device.shared_bytes - query_bytes) // stage_bytes))
    strides = [q.strides[0], q.strides[1], q.strides[2], k.strides[0], k.strides[1], ("i64", k.strides[2])]
    strides = strides + [
        v.strides[0],
        v.strides[1],
        ("i64", v.strides[2]),
        out.strides[0],
        out.strides[1],
        out.strides[2],
    ]
    flipped = case.scalars.scale < 0
    scale = float(-case.scalars.scale if flipped else case.scalars.scale)
    launch = {
        "kernel": "attention_block",
        "grid": (batch * heads * cdiv(seq, block_m),),
        "args": ["q", "k", "v", "out", heads, heads // kv_heads, seq, kv_seq, head_dim, scale] + strides,
        "constants": {
            "CAUSAL": case.scalars.causal,
            "FLIPPED": flipped,
            "DESCRIBED": described,
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "DIM": dim,
        },
        "num_warps": warps,
        "num_stages": stages,
    }
    has_limit = params.maxnreg > 0 and device.kind == "cuda" and warps == 8 and block_n <= 64
    return {"launches": [launch | {"maxnreg": params.maxnreg} if has_limit else launch]}

# ruff: noqa: F821, SIM300 (`plan` is in a language of its own, kernels are in theirs)
"""Softmax over the last axis; fp32 arithmetic, one rounding.

Declared layout: last axis contiguous, any row stride.

Short rows: a tile of whole rows stays in registers, each element is read once. Long rows, and rows that do not
start on 16 bytes: one program per row reads it once for maximum and sum, each lane with a running maximum of its
own, and again (from cache, newest part first) to write. There the row is cut into an aligned body of whole 16-byte
vectors and two edges of less than a vector, so that 50257 half-precision columns are read as wide as 4096.
"""

import triton
import triton.language as tl

PARAMS = {
    "lane_elements": [16, 32, 8],
    "tile_elements": [2048, 4096, 1024],
    "long_warps": [32, 16, 8],
    "long_vectors": [2, 1, 4],
}

# -2^127: its product with log2(e) is exact, so peak minus peak is 0 in a fused multiply-add too, not 1e31.
LOWEST = tl.constexpr(-1.7014118346046923e38)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2_HIGH = tl.constexpr(0.693359375)
LN_2_LOW = tl.constexpr(-2.12194440054690583e-4)


@triton.jit
def _exp_below(value, peak, KIND: tl.constexpr):
    """Return exp(value - peak) for value <= peak, as exactly as the element type KIND asks for."""
    if KIND == tl.float16:
        # No fp16 number is as small as those that exp2 flushes to zero.
        return tl.exp2(value * LOG2_E - peak * LOG2_E)
    if KIND == tl.bfloat16:
        return tl.exp(value - peak)
    # exp(-110) is zero in fp32: the bound keeps the powers of two below in range, and NaN comes through.
    distance = tl.maximum(value - peak, -110.0, propagate_nan=tl.PropagateNan.ALL)
    # The hardware's exp2 costs |distance| units in the last place here; distance = whole * ln(2) + part and a
    # polynomial in part cost less than one.
    whole = tl.floor(distance * LOG2_E + 0.5)
    part = (distance - whole * LN_2_HIGH) - whole * LN_2_LOW
    series = ((1.982308604e-04 * part + 1.394577557e-03) * part + 8.333436213e-03) * part + 4.166627675e-02
    series = (series * part + 1.666666567e-01) * part + 0.5
    result = (series * (part * part) + part) + 1.0
    power = whole.to(tl.int32)
    half = power >> 1
    # 2^power in two factors: results below the normal range are then rounded, not flushed.
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((power - half + 127) << 23).to(tl.float32, bitcast=True)
    return result * first * second


@triton.jit
def _share(weight, total, KIND: tl.constexpr):
    """Return weight / total; rounding it once matters to fp32 alone."""
    if KIND == tl.float32:
        return tl.div_rn(weight, total)
    return (weight * (1.0 / total)).to(KIND)


@triton.jit
def softmax_rows(x, out, rows, cols, x_stride, out_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Normalise a tile of whole rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < cols)
    wide_row = row.to(tl.int64)
    value = tl.load(x + wide_row * x_stride + col, mask=inside, other=float("-inf")).to(tl.float32)
    # A row outside the tensor is all -inf; its NaN is never stored.
    weight = _exp_below(value, tl.max(value, axis=1)[:, None], out.dtype.element_ty)
    result = _share(weight, tl.sum(weight, axis=1)[:, None], out.dtype.element_ty)
    tl.store(out + wide_row * out_stride + col, result, mask=inside)


@triton.jit
def _merge(peak, total, value, KIND: tl.constexpr):
    """Return maximum and sum of each lane with its vectors of one more chunk in them."""
    # The peak starts at the lowest finite number: a lane that saw only -inf then adds exp(-inf) = 0, not NaN.
    fresh = tl.maximum(peak, tl.max(tl.max(value, axis=2), axis=0))
    weight = _exp_below(value, fresh[None, :, None], KIND)
    return fresh, total * _exp_below(peak, fresh, KIND) + tl.sum(tl.sum(weight, axis=2), axis=0)


@triton.jit
def softmax_long(
    x, out, cols, x_stride, out_stride, VECTORS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr
):
    """Normalise one row: chunks of VECTORS vectors per lane, then pieces of one."""
    row = tl.program_id(0).to(tl.int64)
    KIND: tl.constexpr = out.dtype.element_ty
    PIECE: tl.constexpr = LANES * VECTOR
    start = row * x_stride
    head = tl.minimum((VECTOR - start % VECTOR) % VECTOR, cols).to(tl.int32)
    body = tl.multiple_of((cols - head) // VECTOR * VECTOR, VECTOR)
    chunks = body // (VECTORS * PIECE)
    pieces = tl.cdiv(body, PIECE)
    source = x + tl.multiple_of(start + head, VECTOR)
    target = out + tl.multiple_of(row * out_stride + head, VECTOR)
    piece = (tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :])[None]
    chunk = tl.arange(0, VECTORS)[:, None, None] * PIECE + piece
    side = tl.arange(0, 2 * VECTOR)
    edge = tl.where(side < VECTOR, side, head + body + side - VECTOR)
    in_edge = edge < tl.where(side < VECTOR, head, cols)

    margin = tl.load(x + start + edge, mask=in_edge, other=float("-inf")).to(tl.float32)
    peak = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for i in range(chunks):
        value = tl.load(source + i * (VECTORS * PIECE) + chunk).to(tl.float32)
        peak, total = _merge(peak, total, value, KIND)
    for i in range(chunks * VECTORS, pieces):
        spot = i * PIECE + piece
        value = tl.load(source + spot, mask=spot < body, other=float("-inf")).to(tl.float32)
        peak, total = _merge(peak, total, value, KIND)
    top = tl.maximum(tl.max(peak, axis=0), tl.max(margin, axis=0))
    beside = _exp_below(margin, top, KIND)
    all_weight = tl.sum(total * _exp_below(peak, top, KIND), axis=0) + tl.sum(beside, axis=0)

    tl.store(out + row * out_stride + edge, _share(beside, all_weight, KIND), mask=in_edge)
    for i in range(chunks * VECTORS, pieces):
        spot = i * PIECE + piece
        value = tl.load(source + spot, mask=spot < body, other=0.0).to(tl.float32)
        result = _share(_exp_below(value, top, KIND), all_weight, KIND)
        tl.store(target + spot, result, mask=spot < body)
    for i in range(chunks):
        spot = (chunks - 1 - i) * (VECTORS * PIECE) + chunk
        value = tl.load(source + spot, eviction_policy="evict_first").to(tl.float32)
        result = _share(_exp_below(value, top, KIND), all_weight, KIND)
        tl.store(target + spot, result, eviction_policy="evict_first")


def plan(case, params, device):
    """Return the launches of a case."""
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis of x and out must be contiguous"}
    vector = 16 // x.itemsize
    wave = 64 if device.arch in ("gfx90a", "gfx942", "gfx950") else 32
    block = next_power_of_2(max(cols, 1))
    if cols > 16384 or (cols >= 2048 and x.strides[0] % vector + cols % vector > 0):
        # Rows of x and out must share their alignment for both to be cut at the same place.
        same = (x.strides[0] - out.strides[0]) % vector == 0 and x.offset % vector + out.offset % vector == 0
        vector = vector if same else 1
        warps = min(params.long_warps, 1024 // wave, max(4, block // (4 * wave * vector)))
        launch = {
            "kernel": "softmax_long",
            "grid": (rows,),
            "args": ["x", "out", cols, x.strides[0], out.strides[0]],
            "constants": {"VECTORS": params.long_vectors, "LANES": warps * wave, "VECTOR": vector},
            "num_warps": warps,
        }
        # Two blocks per multiprocessor: one loads while the other computes, and both rows stay in its L1 cache.
        is_full = device.kind == "cuda" and warps == 32
        return {"launches": [launch | {"maxnreg": 32} if is_full else launch]}
    # No more rows in a tile than leave every multiprocessor some work.
    fair = next_power_of_2(max(1, rows // (2 * device.units)))
    tile_rows = min(max(1, params.tile_elements // block), fair)
    return {
        "launches": [
            {
                "kernel": "softmax_rows",
                "grid": (cdiv(rows, tile_rows) if cols > 0 else 0,),
                "args": ["x", "out", rows, cols, x.strides[0], out.strides[0]],
                "constants": {"ROWS": tile_rows, "BLOCK": block},
                "num_warps": min(16, max(1, tile_rows * block // (wave * params.lane_elements))),
            }
        ]
    }

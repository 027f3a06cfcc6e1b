# ruff: noqa: F821, RUF005, SIM300 (`plan` is in a language of its own, kernels are in theirs)
"""RMSNorm over the last axis: out = x / sqrt(mean(x^2) + eps) * weight; fp32 arithmetic, one rounding.

Declared layout: last axis contiguous, any row stride.

Short rows: a tile of whole rows stays in registers, each element is read once. Long rows, and rows that do not
start on 16 bytes: one program per row sums its squares, then reads it again (from cache, newest part first) to write.
There the row is cut into an aligned body of whole 16-byte vectors and two edges of less than a vector.
"""

import triton
import triton.language as tl

PARAMS = {
    "lane_elements": [32, 16, 8],
    "tile_elements": [2048, 4096, 1024],
    "long_warps": [16, 8, 32],
    "long_vectors": [2, 1, 4],
}


@triton.jit
def _inverse_root(total, count, eps, KIND: tl.constexpr):
    """Return 1 / sqrt(total / count + eps); exact roundings matter to fp32 alone."""
    if KIND == tl.float32:
        return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(total, count) + eps))
    return tl.rsqrt(total / count + eps)


@triton.jit
def rmsnorm_rows(
    x, weight, out, rows, cols, x_stride, out_stride, count, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Normalise a tile of whole rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (col < cols)
    wide_row = row.to(tl.int64)
    value = tl.load(x + wide_row * x_stride + col, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
    scale = _inverse_root(tl.sum(value * value, axis=1), count, eps, out.dtype.element_ty)
    result = value * scale[:, None] * gain
    tl.store(out + wide_row * out_stride + col, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rmsnorm_long(
    x, weight, out, cols, x_stride, out_stride, count, eps,
    IS_ALIGNED: tl.constexpr, VECTORS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Normalise one row: chunks of VECTORS vectors per lane, then pieces of one."""
    row = tl.program_id(0).to(tl.int64)
    KIND: tl.constexpr = out.dtype.element_ty
    PIECE: tl.constexpr = LANES * VECTOR
    start = row * x_stride
    head = 0 if IS_ALIGNED else tl.minimum((VECTOR - start % VECTOR) % VECTOR, cols).to(tl.int32)
    body = tl.multiple_of((cols - head) // VECTOR * VECTOR, VECTOR)
    chunks = body // (VECTORS * PIECE)
    pieces = tl.cdiv(body, PIECE)
    source = x + tl.multiple_of(start + head, VECTOR)
    target = out + tl.multiple_of(row * out_stride + head, VECTOR)
    gains = weight + head
    piece = (tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :])[None]
    chunk = tl.arange(0, VECTORS)[:, None, None] * PIECE + piece
    side = tl.arange(0, 2 * VECTOR)
    edge = tl.where(side < VECTOR, side, head + body + side - VECTOR)
    in_edge = edge < tl.where(side < VECTOR, head, cols)

    margin = tl.load(x + start + edge, mask=in_edge, other=0.0).to(tl.float32)
    squares = tl.zeros([LANES], tl.float32)
    for i in range(chunks):
        value = tl.load(source + i * (VECTORS * PIECE) + chunk).to(tl.float32)
        squares += tl.sum(tl.sum(value * value, axis=2), axis=0)
    for i in range(chunks * VECTORS, pieces):
        spot = i * PIECE + piece
        value = tl.load(source + spot, mask=spot < body, other=0.0).to(tl.float32)
        squares += tl.sum(tl.sum(value * value, axis=2), axis=0)
    scale = _inverse_root(tl.sum(squares, axis=0) + tl.sum(margin * margin, axis=0), count, eps, KIND)

    edge_gain = tl.load(weight + edge, mask=in_edge, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + edge, (margin * scale * edge_gain).to(KIND), mask=in_edge)
    for i in range(chunks * VECTORS, pieces):
        spot = i * PIECE + piece
        value = tl.load(source + spot, mask=spot < body, other=0.0).to(tl.float32)
        gain = tl.load(gains + spot, mask=spot < body, other=0.0).to(tl.float32)
        tl.store(target + spot, (value * scale * gain).to(KIND), mask=spot < body)
    for i in range(chunks):
        spot = (chunks - 1 - i) * (VECTORS * PIECE) + chunk
        value = tl.load(source + spot, eviction_policy="evict_first").to(tl.float32)
        gain = tl.load(gains + spot).to(tl.float32)
        tl.store(target + spot, (value * scale * gain).to(KIND), eviction_policy="evict_first")


def plan(case, params, device):
    """Return the launches of a case."""
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    dense = x.strides[1] == 1 and out.strides[1] == 1 and case.tensors.weight.strides[0] == 1
    if cols > 1 and not dense:
        return {"unsupported": "the last axis of x, weight and out must be contiguous"}
    vector = 16 // x.itemsize
    wave = 64 if device.arch in ("gfx90a", "gfx942", "gfx950") else 32
    block = next_power_of_2(max(cols, 1))
    is_aligned = x.strides[0] % vector + cols % vector == 0
    if cols > 16384 or (cols >= 2048 and not is_aligned):
        # Rows of x and out must share their alignment for both to be cut at the same place.
        same = (x.strides[0] - out.strides[0]) % vector == 0 and x.offset % vector + out.offset % vector == 0
        vector = vector if same else 1
        warps = min(params.long_warps, 1024 // wave, max(4, block // (4 * wave * vector)))
        return {
            "launches": [
                {
                    "kernel": "rmsnorm_long",
                    "grid": (rows,),
                    "args": [
                        "x",
                        "weight",
                        "out",
                        cols,
                        x.strides[0],
                        out.strides[0],
                        float(cols),
                        case.scalars.eps,
                    ],
                    "constants": {
                        "IS_ALIGNED": is_aligned,
                        "VECTORS": params.long_vectors,
                        "LANES": warps * wave,
                        "VECTOR": vector,
                    },
                    "num_warps": warps,
                }
            ]
        }
    # No more rows in a tile than leave every multiprocessor some work.
    fair = next_power_of_2(max(1, rows // (2 * device.units)))
    tile_rows = min(max(1, params.tile_elements // block), fair)
    strides = [x.strides[0], out.strides[0]]
    return {
        "launches": [
            {
                "kernel": "rmsnorm_rows",
                "grid": (cdiv(rows, tile_rows) if cols > 0 else 0,),
                "args": ["x", "weight", "out", rows, cols] + strides + [float(cols), case.scalars.eps],
                "constants": {"ROWS": tile_rows, "BLOCK": block},
                "num_warps": min(16, max(1, tile_rows * block // (wave * params.lane_elements))),
            }
        ]
    }

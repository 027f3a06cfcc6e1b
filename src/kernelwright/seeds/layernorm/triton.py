# ruff: noqa: F821, RUF005, SIM300 (`plan` is in a language of its own, kernels are in theirs)
"""LayerNorm over the last axis: out = (x - mean) / sqrt(var + eps) * weight + bias; fp32 arithmetic, one rounding.

Declared layout: last axis contiguous, any row stride.

Short rows: a tile of whole rows stays in registers; mean first, then the mean square of what is left, so that a
large common offset costs no digits. Long rows, rows that fill
little of a power of two, and rows that do not start on 16 bytes: one program per row; each lane
merges mean and squared deviations of one group of vectors after another (Chan's formula), then the row is read again
(from cache, newest part first) to write. There the row is cut into an aligned body of whole 16-byte vectors and two
edges of less than a vector.
"""

import triton
import triton.language as tl

PARAMS = {
    "lane_elements": [32, 16, 8],
    "short_lane_elements": [16, 32, 8],
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
def layernorm_rows(
    x,
    weight,
    bias,
    out,
    rows,
    cols,
    x_stride,
    out_stride,
    count,
    eps,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Normalise a tile of whole rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows)[:, None] & (col < cols)
    wide_row = row.to(tl.int64)
    value = tl.load(x + (wide_row * x_stride)[:, None] + col, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(col < cols, value - (tl.sum(value, axis=1) / count)[:, None], 0.0)
    if out.dtype.element_ty == tl.float32:
        # What the rounding of the mean left: up to 3e-5 at an offset of 1000.
        centred = tl.where(col < cols, centred - (tl.sum(centred, axis=1) / count)[:, None], 0.0)
    scale = _inverse_root(tl.sum(centred * centred, axis=1), count, eps, out.dtype.element_ty)
    # Gain and shift come from cache: loading them only now leaves room for one more row in flight.
    gain = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
    shift = tl.load(bias + col, mask=col < cols, other=0.0).to(tl.float32)
    result = centred * scale[:, None] * gain + shift
    tl.store(out + (wide_row * out_stride)[:, None] + col, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _moments(value, COUNT: tl.constexpr):
    """Return each lane's mean and sum of squared deviations over its COUNT elements."""
    mean = tl.sum(tl.sum(value, axis=2), axis=0) * (1.0 / COUNT)
    centred = value - mean[None, :, None]
    return mean, tl.sum(tl.sum(centred * centred, axis=2), axis=0)


@triton.jit
def layernorm_long(
    x, weight, bias, out, cols, x_stride, out_stride, count, eps,
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
    gains, shifts = weight + head, bias + head
    piece = (tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :])[None]
    chunk = tl.arange(0, VECTORS)[:, None, None] * PIECE + piece
    side = tl.arange(0, 2 * VECTOR)
    edge = tl.where(side < VECTOR, side, head + body + side - VECTOR)
    in_edge = edge < tl.where(side < VECTOR, head, cols)

    margin = tl.load(x + start + edge, mask=in_edge, other=0.0).to(tl.float32)
    means = tl.zeros([LANES], tl.float32)
    squares = tl.zeros([LANES], tl.float32)
    for i in range(chunks):
        value = tl.load(source + i * (VECTORS * PIECE) + chunk).to(tl.float32)
        mean, square = _moments(value, VECTORS * VECTOR)
        # Every lane has merged i chunks before this one.
        part = 1.0 / (i * 1.0 + 1.0)
        delta = mean - means
        means += delta * part
        squares += square + delta * delta * (part * i * (VECTORS * VECTOR))
    counts = tl.zeros([LANES], tl.float32) + chunks * (VECTORS * VECTOR)
    for i in range(chunks * VECTORS, pieces):
        spot = i * PIECE + piece
        value = tl.load(source + spot, mask=spot < body, other=0.0).to(tl.float32)
        mean, square = _moments(value, VECTOR)
        added = tl.where(i * PIECE + tl.arange(0, LANES) * VECTOR < body, VECTOR * 1.0, 0.0)
        parts = added / tl.maximum(counts + added, 1.0)
        delta = mean - means
        means += delta * parts
        squares += tl.where(added > 0.0, square + delta * delta * (parts * counts), 0.0)
        counts += added
    centre = (tl.sum(counts * means, axis=0) + tl.sum(margin, axis=0)) / count
    spread = means - centre
    beside = tl.where(in_edge, margin - centre, 0.0)
    # What the rounding of the mean left: up to 3e-5 at an offset of 1000.
    residue = (tl.sum(counts * spread, axis=0) + tl.sum(beside, axis=0)) / count
    spread -= residue
    beside = tl.where(in_edge, beside - residue, 0.0)
    total = tl.sum(squares + spread * spread * counts, axis=0) + tl.sum(beside * beside, axis=0)
    scale = _inverse_root(total, count, eps, KIND)

    edge_gain = tl.load(weight + edge, mask=in_edge, other=0.0).to(tl.float32)
    edge_shift = tl.load(bias + edge, mask=in_edge, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + edge, (beside * scale * edge_gain + edge_shift).to(KIND), mask=in_edge)
    for i in range(chunks * VECTORS, pieces):
        spot = i * PIECE + piece
        value = tl.load(source + spot, mask=spot < body, other=0.0).to(tl.float32) - centre - residue
        gain = tl.load(gains + spot, mask=spot < body, other=0.0).to(tl.float32)
        shift = tl.load(shifts + spot, mask=spot < body, other=0.0).to(tl.float32)
        tl.store(target + spot, (value * scale * gain + shift).to(KIND), mask=spot < body)
    for i in range(chunks):
        spot = (chunks - 1 - i) * (VECTORS * PIECE) + chunk
        value = tl.load(source + spot, eviction_policy="evict_first").to(tl.float32) - centre - residue
        gain = tl.load(gains + spot).to(tl.float32)
        shift = tl.load(shifts + spot).to(tl.float32)
        tl.store(target + spot, (value * scale * gain + shift).to(KIND), eviction_policy="evict_first")


def plan(case, params, device):
    """Return the launches of a case."""
    x, weight, bias, out = case.tensors.x, case.tensors.weight, case.tensors.bias, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    dense = x.strides[1] == 1 and out.strides[1] == 1 and weight.strides[0] == 1 and bias.strides[0] == 1
    if cols > 1 and not dense:
        return {"unsupported": "the last axis of x, weight, bias and out must be contiguous"}
    vector = 16 // x.itemsize
    wave = 64 if device.arch in ("gfx90a", "gfx942", "gfx950") else 32
    block = next_power_of_2(max(cols, 1))
    is_aligned = x.strides[0] % vector + cols % vector == 0
    # 5120 columns fill little of a block of 8192: walking the row was 11 % faster on an H200.
    is_wasteful = cols > 2048 and 4 * cols <= 3 * block
    if cols > 16384 or is_wasteful or (cols >= 2048 and not is_aligned):
        # Rows of x and out must share their alignment for both to be cut at the same place.
        same = (x.strides[0] - out.strides[0]) % vector == 0 and x.offset % vector + out.offset % vector == 0
        vector = vector if same else 1
        warps = min(params.long_warps, 1024 // wave, max(4, block // (8 * wave * vector)))
        return {
            "launches": [
                {
                    "kernel": "layernorm_long",
                    "grid": (rows,),
                    "args": [
                        "x",
                        "weight",
                        "bias",
                        "out",
                        cols,
                        x.strides[0],
                        out.strides[0],
                        float(cols),
                        case.scalars.eps,
                    ],
                    "constants": {
                        "IS_ALIGNED": is_aligned,
                        "VECTORS": params.long_vectors if block > 16384 else 1,
                        "LANES": warps * wave,
                        "VECTOR": vector,
                    },
                    "num_warps": warps,
                }
            ]
        }
    # Short rows need more lanes to keep enough loads in flight.
    lane_elements = params.lane_elements if cols > 2048 else params.short_lane_elements
    # No more rows in a tile than leave every multiprocessor some work.
    fair = next_power_of_2(max(1, rows // (2 * device.units)))
    tile_rows = min(max(1, params.tile_elements // block), fair)
    strides = [x.strides[0], out.strides[0]]
    return {
        "launches": [
            {
                "kernel": "layernorm_rows",
                "grid": (cdiv(rows, tile_rows) if cols > 0 else 0,),
                "args": ["x", "weight", "bias", "out", rows, cols]
                + strides
                + [float(cols), case.scalars.eps],
                "constants": {"ROWS": tile_rows, "BLOCK": block},
                "num_warps": min(16, max(1, tile_rows * block // (wave * lane_elements))),
            }
        ]
    }

# ruff: noqa: F821, RUF005 (`plan` is in a language of its own, kernels are in theirs)
"""Sum or maximum over the last axis; fp32 arithmetic, one rounding. A NaN in a row makes its maximum NaN.

Declared layout: last axis contiguous, any row stride.

Short rows: a tile of several whole rows is read at once. Long rows, and rows that do not start on 16 bytes: the row
is cut into an aligned body of whole 16-byte vectors and two edges of less than a vector; where there are too few rows
to fill the device, several programs share a row and a second launch reduces their results in a fixed order.
"""

import triton
import triton.language as tl

PARAMS = {
    "tile_elements": [8192, 4096, 16384],
    "lane_elements": [32, 16, 64],
    "long_warps": [8, 16, 4],
    "long_vectors": [4, 2, 1],
}


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _reduced(value, AXIS: tl.constexpr, IS_MAX: tl.constexpr):
    if IS_MAX:
        # tl.max passes over NaN; the sum is NaN if there is one and zero otherwise.
        return tl.max(value, axis=AXIS) + tl.sum(tl.where(value == value, 0.0, value), axis=AXIS)
    return tl.sum(value, axis=AXIS)


@triton.jit
def _merge(result, value, IS_MAX: tl.constexpr):
    """Return each lane's result with its vectors of one more chunk in it."""
    fresh = _reduced(_reduced(value, 2, IS_MAX), 0, IS_MAX)
    if IS_MAX:
        return _larger(result, fresh)
    return result + fresh


@triton.jit
def reduce_rows(
    x, out, rows, cols, x_stride, out_stride, IS_MAX: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Reduce a tile of whole rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, BLOCK)[None, :]
    wide_row = row.to(tl.int64)
    inside = (row[:, None] < rows) & (col < cols)
    nothing = float("-inf") if IS_MAX else 0.0
    value = tl.load(x + wide_row[:, None] * x_stride + col, mask=inside, other=nothing).to(tl.float32)
    result = _reduced(value, 1, IS_MAX)
    tl.store(out + wide_row * out_stride, result.to(out.dtype.element_ty), mask=row < rows)


@triton.jit
def reduce_long(
    x, out, cols, part_cols, x_stride, out_stride,
    IS_MAX: tl.constexpr, IS_PART: tl.constexpr, VECTORS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Reduce one part of one row: chunks of VECTORS vectors per lane, then pieces of one."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    PIECE: tl.constexpr = LANES * VECTOR
    nothing = float("-inf") if IS_MAX else 0.0
    width = tl.minimum(cols - part * part_cols, part_cols)
    start = row * x_stride + part * part_cols
    head = tl.minimum((VECTOR - start % VECTOR) % VECTOR, width).to(tl.int32)
    body = tl.multiple_of((width - head) // VECTOR * VECTOR, VECTOR)
    chunks = body // (VECTORS * PIECE)
    source = x + tl.multiple_of(start + head, VECTOR)
    piece = (tl.arange(0, LANES)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :])[None]
    chunk = tl.arange(0, VECTORS)[:, None, None] * PIECE + piece
    side = tl.arange(0, 2 * VECTOR)
    edge = tl.where(side < VECTOR, side, head + body + side - VECTOR)
    in_edge = edge < tl.where(side < VECTOR, head, width)

    margin = tl.load(x + start + edge, mask=in_edge, other=nothing).to(tl.float32)
    result = tl.full([LANES], nothing, tl.float32)
    for i in range(chunks):
        value = tl.load(source + i * (VECTORS * PIECE) + chunk, eviction_policy="evict_first").to(tl.float32)
        result = _merge(result, value, IS_MAX)
    for i in range(chunks * VECTORS, tl.cdiv(body, PIECE)):
        spot = i * PIECE + piece
        value = tl.load(source + spot, mask=spot < body, other=nothing).to(tl.float32)
        result = _merge(result, value, IS_MAX)
    inner, outer = _reduced(result, 0, IS_MAX), _reduced(margin, 0, IS_MAX)
    answer = _larger(inner, outer) if IS_MAX else inner + outer
    if IS_PART:
        tl.store(out.to(tl.pointer_type(tl.float32)) + row * tl.num_programs(1) + part, answer)
    else:
        tl.store(out + row * out_stride, answer.to(out.dtype.element_ty))


@triton.jit
def reduce_parts(partial, out, out_stride, parts, IS_MAX: tl.constexpr, BLOCK: tl.constexpr):
    """Reduce the parts of one row."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    nothing = float("-inf") if IS_MAX else 0.0
    source = partial.to(tl.pointer_type(tl.float32)) + row * parts + place
    value = tl.load(source, mask=place < parts, other=nothing)
    tl.store(out + row * out_stride, _reduced(value, 0, IS_MAX).to(out.dtype.element_ty))


def plan(case, params, device):
    """Return the launches of a case."""
    x, out = case.tensors.x, case.tensors.out
    rows, cols, is_max = case.axes.rows, case.axes.cols, case.scalars.is_max
    if cols > 1 and x.strides[1] != 1:
        return {"unsupported": "the last axis of x must be contiguous"}
    vector = 16 // x.itemsize
    wave = 64 if device.arch in ("gfx90a", "gfx942", "gfx950") else 32
    block = next_power_of_2(max(cols, 1))
    if cols <= 8192 and (cols < 2048 or x.strides[0] % vector + cols % vector == 0):
        # No more rows in a tile than leave every multiprocessor some work.
        fair = next_power_of_2(max(1, rows // (4 * device.units)))
        tile_rows = min(max(1, params.tile_elements // block), fair)
        return {
            "launches": [
                {
                    "kernel": "reduce_rows",
                    "grid": (cdiv(rows, tile_rows),),
                    "args": ["x", "out", rows, cols, x.strides[0], out.strides[0]],
                    "constants": {"IS_MAX": is_max, "ROWS": tile_rows, "BLOCK": block},
                    "num_warps": min(16, max(1, tile_rows * block // (wave * params.lane_elements))),
                }
            ]
        }
    warps = min(params.long_warps, 1024 // wave)
    # Four blocks per multiprocessor, as long as each has a whole chunk to work on.
    wanted = max(1, 4 * device.units // max(1, rows))
    parts = max(1, min(wanted, cols // (warps * wave * params.long_vectors * vector), 1024))
    part_cols = cdiv(cdiv(cols, parts), vector) * vector
    parts = cdiv(cols, part_cols)
    strides = [x.strides[0], out.strides[0]]
    whole = {
        "kernel": "reduce_long",
        "grid": (rows, parts),
        "args": ["x", "out" if parts == 1 else "partial", cols, part_cols] + strides,
        "constants": {
            "IS_MAX": is_max,
            "IS_PART": parts > 1,
            "VECTORS": params.long_vectors,
            "LANES": warps * wave,
            "VECTOR": vector,
        },
        "num_warps": warps,
    }
    if parts == 1:
        return {"launches": [whole]}
    finish = {
        "kernel": "reduce_parts",
        "grid": (rows,),
        "args": ["partial", "out", out.strides[0], parts],
        "constants": {"IS_MAX": is_max, "BLOCK": next_power_of_2(parts)},
        "num_warps": 1,
    }
    return {
        "launches": [whole, finish],
        "workspaces": [{"name": "partial", "nbytes": 4 * rows * parts, "zero_fill": False}],
    }

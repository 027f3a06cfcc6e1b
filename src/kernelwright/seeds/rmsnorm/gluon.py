# ruff: noqa: F821, RUF005, SIM300 (`plan` is in a language of its own, kernels are in theirs)
"""RMSNorm in Gluon, the layout spelled out: out = x / sqrt(mean(x^2) + eps) * weight; fp32 arithmetic, one rounding.

Declared layout: last axis contiguous, any row stride.

Each lane holds 16-byte vectors; as few warps share a row as can keep it in registers, so that rows of up to 1024
halves need no word between warps. Longer rows are read in chunks: once for the sum of squares, once more (from cache)
to write.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

PARAMS = {
    "lane_elements": [32, 16, 64],
    "num_warps": [4, 8],
    "chunk_vectors": [4, 2],
}


@gluon.jit
def _inverse_root(total, count, eps, KIND: gl.constexpr):
    """Return 1 / sqrt(total / count + eps); exact roundings matter to fp32 alone."""
    if KIND == gl.float32:
        return gl.div_rn(1.0, gl.sqrt_rn(gl.div_rn(total, count) + eps))
    return gl.rsqrt(total / count + eps)


@gluon.jit
def rmsnorm_rows(
    x, weight, out, rows, cols, x_stride, out_stride, count, eps,
    ROWS: gl.constexpr, BLOCK: gl.constexpr, VECTOR: gl.constexpr, WAVE: gl.constexpr,
    ROW_WARPS: gl.constexpr, COL_WARPS: gl.constexpr,
):  # fmt: skip
    """Normalise a tile of whole rows, COL_WARPS warps to a row."""
    layout: gl.constexpr = gl.BlockedLayout([1, VECTOR], [1, WAVE], [ROW_WARPS, COL_WARPS], [1, 0])
    KIND: gl.constexpr = out.dtype.element_ty
    row = gl.program_id(0) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    col = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, layout))
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    wide_row = row.to(gl.int64)
    value = gl.load(x + (wide_row * x_stride)[:, None] + col[None, :], mask=inside, other=0.0).to(gl.float32)
    gain = gl.load(weight + col, mask=col < cols, other=0.0).to(gl.float32)
    scale = _inverse_root(gl.sum(value * value, axis=1), count, eps, KIND)
    result = value * scale[:, None] * gain[None, :]
    gl.store(out + (wide_row * out_stride)[:, None] + col[None, :], result.to(KIND), mask=inside)


@gluon.jit
def rmsnorm_long(
    x, weight, out, cols, x_stride, out_stride, count, eps,
    CHUNK: gl.constexpr, VECTOR: gl.constexpr, WAVE: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Normalise one row in chunks."""
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [WAVE], [WARPS], [0])
    KIND: gl.constexpr = out.dtype.element_ty
    row = gl.program_id(0).to(gl.int64)
    place = gl.arange(0, CHUNK, layout=layout)
    squares = gl.full([CHUNK], 0.0, gl.float32, layout=layout)
    for start in range(0, cols, CHUNK):
        col = start + place
        value = gl.load(x + row * x_stride + col, mask=col < cols, other=0.0).to(gl.float32)
        squares += value * value
    scale = _inverse_root(gl.sum(squares, axis=0), count, eps, KIND)
    for start in range(0, cols, CHUNK):
        col = start + place
        value = gl.load(x + row * x_stride + col, mask=col < cols, other=0.0).to(gl.float32)
        gain = gl.load(weight + col, mask=col < cols, other=0.0).to(gl.float32)
        gl.store(out + row * out_stride + col, (value * scale * gain).to(KIND), mask=col < cols)


def plan(case, params, device):
    """Return the launches of a case."""
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    dense = x.strides[1] == 1 and out.strides[1] == 1 and case.tensors.weight.strides[0] == 1
    if cols > 1 and not dense:
        return {"unsupported": "the last axis of x, weight and out must be contiguous"}
    vector = 16 // x.itemsize
    wave = 64 if device.arch in ("gfx90a", "gfx942", "gfx950") else 32
    strides = [x.strides[0], out.strides[0]]
    if cols > 16384:
        return {
            "launches": [
                {
                    "kernel": "rmsnorm_long",
                    "grid": (rows,),
                    "args": ["x", "weight", "out", cols] + strides + [float(cols), case.scalars.eps],
                    "constants": {
                        "CHUNK": 8 * wave * vector * params.chunk_vectors,
                        "VECTOR": vector,
                        "WAVE": wave,
                        "WARPS": 8,
                    },
                    "num_warps": 8,
                }
            ]
        }
    block = next_power_of_2(max(cols, 1))
    col_warps = min(16, max(1, block // (wave * params.lane_elements)))
    row_warps = max(1, params.num_warps // col_warps)
    return {
        "launches": [
            {
                "kernel": "rmsnorm_rows",
                "grid": (cdiv(rows, row_warps) if cols > 0 else 0,),
                "args": ["x", "weight", "out", rows, cols] + strides + [float(cols), case.scalars.eps],
                "constants": {
                    "ROWS": row_warps,
                    "BLOCK": block,
                    "VECTOR": vector,
                    "WAVE": wave,
                    "ROW_WARPS": row_warps,
                    "COL_WARPS": col_warps,
                },
                "num_warps": row_warps * col_warps,
            }
        ]
    }

# op: rmsnorm
# backend: triton
# runs: gpu
# Two kernels and a workspace: one leaves a scale per row, the other applies it on a grid of two axes.
# ruff: noqa: F821, N803 (`plan` is in a language of its own, kernels are in theirs)
import triton
import triton.language as tl

PARAMS = {"block": [1024, 512, 2048], "tile_rows": [4, 1, 8]}


@triton.jit
def row_scales(x, scales, cols, x_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + place
        value = tl.load(x + row * x_stride + col, mask=col < cols, other=0.0).to(tl.float32)
        sums += value * value
    scale = 1.0 / tl.sqrt_rn(tl.sum(sums, axis=0) / cols + eps)
    tl.store(scales.to(tl.pointer_type(tl.float32)) + row, scale)


@triton.jit
def apply_scales(
    x, weight, scales, out, rows, cols, x_stride, out_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    wide = row.to(tl.int64)[:, None]
    scale = tl.load(scales.to(tl.pointer_type(tl.float32)) + row, mask=row < rows, other=0.0)
    gain = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
    value = tl.load(x + wide * x_stride + col[None, :], mask=inside, other=0.0).to(tl.float32)
    result = value * scale[:, None] * gain[None, :]
    tl.store(out + wide * out_stride + col[None, :], result.to(out.dtype.element_ty), mask=inside)


def plan(case, params, device):
    x, weight, out = case.tensors.x, case.tensors.weight, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or weight.strides[0] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    block = min(params.block, next_power_of_2(max(cols, 1)))
    return {
        "launches": [
            {
                "kernel": "row_scales",
                "grid": (rows if cols else 0,),
                "args": ["x", "scales", cols, x.strides[0], case.scalars.eps],
                "constants": {"BLOCK": block},
                "num_warps": 4,
            },
            {
                "kernel": "apply_scales",
                "grid": (cdiv(rows, params.tile_rows), cdiv(cols, block)),
                "args": ["x", "weight", "scales", "out", rows, cols, x.strides[0], out.strides[0]],
                "constants": {"ROWS": params.tile_rows, "BLOCK": block},
                "num_warps": 4,
            },
        ],
        "workspaces": [{"name": "scales", "nbytes": 4 * max(1, rows), "zero_fill": False}],
    }

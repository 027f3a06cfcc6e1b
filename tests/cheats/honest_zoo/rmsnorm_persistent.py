# op: rmsnorm
# backend: triton
# runs: gpu
# A persistent grid walks from the last row to the first in a pipelined loop and asks counter and eps for their types.
# ruff: noqa: F821, N803 (`plan` is in a language of its own, kernels are in theirs)
import triton
import triton.language as tl

PARAMS = {"block": [1024, 2048, 512], "per_unit": [4, 2, 1]}


@triton.jit
def scale_of(source, cols, eps, BLOCK: tl.constexpr):
    sums = tl.zeros([BLOCK], tl.float32)
    whole = cols // BLOCK
    for block in range(whole):
        value = tl.load(source + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)).to(tl.float32)
        sums += value * value
    col = whole * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + col, mask=col < cols, other=0.0).to(tl.float32)
    sums += value * value
    return 1.0 / tl.sqrt_rn(tl.sum(sums, axis=0) / cols + eps.to(tl.float32))


@triton.jit
def rmsnorm_walk(x, weight, out, rows, cols, x_stride, out_stride, eps, BLOCK: tl.constexpr):
    for turn in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=2):
        row = rows - 1 - turn.to(tl.int64)
        tl.static_assert(turn.dtype == tl.int32 and row.dtype == tl.int64)
        scale = scale_of(x + row * x_stride, cols, eps, BLOCK)
        for start in range(0, cols, BLOCK):
            col = start + tl.arange(0, BLOCK)
            value = tl.load(x + row * x_stride + col, mask=col < cols, other=0.0).to(tl.float32)
            gain = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
            result = (value * scale * gain).to(out.dtype.element_ty)
            tl.store(out + row * out_stride + col, result, mask=col < cols)


def plan(case, params, device):
    x, weight, out = case.tensors.x, case.tensors.weight, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or weight.strides[0] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    return {
        "launches": [
            {
                "kernel": "rmsnorm_walk",
                "grid": (min(rows, params.per_unit * device.units) if cols else 0,),
                "args": ["x", "weight", "out", rows, cols, x.strides[0], out.strides[0], case.scalars.eps],
                "constants": {"BLOCK": min(params.block, next_power_of_2(max(cols, 1)))},
                "num_warps": 4,
            }
        ]
    }

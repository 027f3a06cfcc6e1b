# op: softmax
# backend: triton
# runs: gpu
# A persistent grid: no more programs than the device has units, each of which walks over many rows of any length.
# ruff: noqa: F821, N803 (`plan` is in a language of its own, kernels are in theirs)
import triton
import triton.language as tl

PARAMS = {"block": [1024, 2048, 512], "per_unit": [2, 1, 4]}


@triton.jit
def softmax_walk(x, out, rows, cols, x_stride, out_stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        wide = row.to(tl.int64)
        source = x + wide * x_stride
        target = out + wide * out_stride
        peaks = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, cols, BLOCK):
            col = start + place
            value = tl.load(source + col, mask=col < cols, other=float("-inf")).to(tl.float32)
            peaks = tl.maximum(peaks, value)
        peak = tl.max(peaks, axis=0)
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, cols, BLOCK):
            col = start + place
            value = tl.load(source + col, mask=col < cols, other=float("-inf")).to(tl.float32)
            # Places beyond the row would be NaN in a row of minus infinity alone.
            sums += tl.where(col < cols, tl.exp(value - peak), 0.0)
        total = tl.sum(sums, axis=0)
        for start in range(0, cols, BLOCK):
            col = start + place
            value = tl.load(source + col, mask=col < cols, other=float("-inf")).to(tl.float32)
            share = tl.exp(value - peak) / total
            tl.store(target + col, share.to(out.dtype.element_ty), mask=col < cols)


def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis of x and out must be contiguous"}
    block = min(params.block, next_power_of_2(max(cols, 1)))
    return {
        "launches": [
            {
                "kernel": "softmax_walk",
                "grid": (min(rows, params.per_unit * device.units),),
                "args": ["x", "out", rows, cols, x.strides[0], out.strides[0]],
                "constants": {"BLOCK": block},
                "num_warps": max(1, min(8, block // 128)),
            }
        ]
    }

# op: softmax
# backend: triton
# runs: gpu
# Works in place: one kernel copies the input into the output, the other is given nothing but the output.
# ruff: noqa: F821, N803 (`plan` is in a language of its own, kernels are in theirs)
import triton
import triton.language as tl

PARAMS = {"block": [1024, 512, 2048]}


@triton.jit
def copy_rows(x, out, cols, x_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * x_stride + col, mask=col < cols)
    tl.store(out + row * out_stride + col, value, mask=col < cols)


@triton.jit
def softmax_in_place(out, cols, stride, BLOCK: tl.constexpr):
    line = out + tl.program_id(0).to(tl.int64) * stride
    place = tl.arange(0, BLOCK)
    peaks = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + place
        value = tl.load(line + col, mask=col < cols, other=float("-inf")).to(tl.float32)
        peaks = tl.maximum(peaks, value)
    peak = tl.max(peaks, axis=0)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + place
        value = tl.load(line + col, mask=col < cols, other=float("-inf")).to(tl.float32)
        # Places beyond the row would be NaN in a row of minus infinity alone.
        sums += tl.where(col < cols, tl.exp(value - peak), 0.0)
    total = tl.sum(sums, axis=0)
    for start in range(0, cols, BLOCK):
        col = start + place
        # Nobody but the thread that writes an element reads it: the layout is the same in all three loops.
        value = tl.load(line + col, mask=col < cols, other=float("-inf")).to(tl.float32)
        tl.store(line + col, (tl.exp(value - peak) / total).to(out.dtype.element_ty), mask=col < cols)


def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    block = min(params.block, next_power_of_2(max(cols, 1)))
    return {
        "launches": [
            {
                "kernel": "copy_rows",
                "grid": (rows, cdiv(cols, block)),
                "args": ["x", "out", cols, x.strides[0], out.strides[0]],
                "constants": {"BLOCK": block},
                "num_warps": max(1, min(8, block // 128)),
            },
            {
                "kernel": "softmax_in_place",
                "grid": (rows if cols else 0,),
                "args": ["out", cols, out.strides[0]],
                "constants": {"BLOCK": block},
                "num_warps": max(1, min(8, block // 128)),
            },
        ]
    }

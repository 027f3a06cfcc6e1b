# op: reduce
# backend: triton
# runs: gpu
# Parts of a row meet in an fp32 atomic of a zero-filled workspace, in no fixed order, which it declares.
# ruff: noqa: F821, N803 (`plan` is in a language of its own, kernels are in theirs)
import triton
import triton.language as tl

REORDER = True
PARAMS = {"block": [1024, 2048, 512]}


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def add_parts(x, sums, cols, x_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * x_stride + col, mask=col < cols, other=0.0).to(tl.float32)
    tl.atomic_add(sums.to(tl.pointer_type(tl.float32)) + row, tl.sum(value, axis=0))


@triton.jit
def round_sums(sums, out, rows, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(sums.to(tl.pointer_type(tl.float32)) + row, mask=row < rows, other=0.0)
    tl.store(out + row.to(tl.int64) * out_stride, total.to(out.dtype.element_ty), mask=row < rows)


@triton.jit
def whole_maximum(x, out, cols, x_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    highs = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + place
        value = tl.load(x + row * x_stride + col, mask=col < cols, other=float("-inf")).to(tl.float32)
        highs = larger(highs, value)
    high = tl.reduce(highs, 0, larger)
    tl.store(out + row * out_stride, high.to(out.dtype.element_ty))


def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and x.strides[1] != 1:
        return {"unsupported": "the last axis of x must be contiguous"}
    block = min(params.block, next_power_of_2(max(cols, 1)))
    if case.scalars.is_max:
        return {
            "launches": [
                {
                    "kernel": "whole_maximum",
                    "grid": (rows,),
                    "args": ["x", "out", cols, x.strides[0], out.strides[0]],
                    "constants": {"BLOCK": block},
                    "num_warps": 4,
                }
            ]
        }
    return {
        "launches": [
            {
                "kernel": "add_parts",
                "grid": (rows, cdiv(cols, block)),
                "args": ["x", "sums", cols, x.strides[0]],
                "constants": {"BLOCK": block},
                "num_warps": 4,
            },
            {
                "kernel": "round_sums",
                "grid": (cdiv(rows, 128),),
                "args": ["sums", "out", rows, out.strides[0]],
                "constants": {"BLOCK": 128},
                "num_warps": 4,
            },
        ],
        "workspaces": [{"name": "sums", "nbytes": 4 * max(1, rows), "zero_fill": True}],
    }

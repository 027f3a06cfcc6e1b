# op: softmax
# backend: python
# runs: gpu
# Tunes itself by a table of its own: host code picks kernel, block and warps by the length of a row.
# ruff: noqa: N803 (kernels are in a language of their own)
import torch
import triton
import triton.language as tl

TABLE = [(256, 1), (1024, 4), (4096, 8), (16384, 16)]


@triton.jit
def in_one_go(x, out, cols, x_row, x_col, out_row, out_col, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK).to(tl.int64)
    value = tl.load(x + row * x_row + col * x_col, mask=col < cols, other=float("-inf")).to(tl.float32)
    grown = tl.exp(value - tl.max(value, axis=0))
    share = grown / tl.sum(grown, axis=0)
    tl.store(out + row * out_row + col * out_col, share.to(out.dtype.element_ty), mask=col < cols)


@triton.jit
def block_by_block(x, out, cols, x_row, x_col, out_row, out_col, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK).to(tl.int64)
    peaks = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + place
        value = tl.load(x + row * x_row + col * x_col, mask=col < cols, other=float("-inf")).to(tl.float32)
        peaks = tl.maximum(peaks, value, propagate_nan=tl.PropagateNan.ALL)
    peak = tl.max(peaks, axis=0)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + place
        value = tl.load(x + row * x_row + col * x_col, mask=col < cols, other=float("-inf")).to(tl.float32)
        sums += tl.where(col < cols, tl.exp(value - peak), 0.0)
    total = tl.sum(sums, axis=0)
    for start in range(0, cols, BLOCK):
        col = start + place
        value = tl.load(x + row * x_row + col * x_col, mask=col < cols, other=float("-inf")).to(tl.float32)
        share = tl.exp(value - peak) / total
        tl.store(out + row * out_row + col * out_col, share.to(out.dtype.element_ty), mask=col < cols)


def kernel_fn(x):
    out = torch.empty_like(x)
    rows, cols = x.shape
    for block, warps in TABLE:
        if cols <= block:
            in_one_go[(rows,)](
                x,
                out,
                cols,
                x.stride(0),
                x.stride(1),
                out.stride(0),
                out.stride(1),
                BLOCK=block,
                num_warps=warps,
            )
            return out
    block_by_block[(rows,)](
        x, out, cols, x.stride(0), x.stride(1), out.stride(0), out.stride(1), BLOCK=4096, num_warps=16
    )
    return out

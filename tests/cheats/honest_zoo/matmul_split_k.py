# op: matmul
# backend: triton
# runs: gpu
# Split-K through a workspace of partial products, which a second kernel adds in one order; tiles are its PARAMS.
# ruff: noqa: F821, N803 (`plan` is in a language of its own, kernels are in theirs)
import triton
import triton.language as tl

PARAMS = {"block": [32, 64], "depth": [32, 64], "splits": [4, 2, 8], "warps": [4, 8]}


@triton.jit
def partial_products(
    a, b, partial, m, n, k, slice_depth, a_m, a_k, b_k, b_n, BLOCK: tl.constexpr, DEPTH: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(2) * slice_depth
    last = tl.minimum(first + slice_depth, k)
    sums = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(first, last, DEPTH):
        inner = start + tl.arange(0, DEPTH)
        left_at = a + row.to(tl.int64)[:, None] * a_m + inner.to(tl.int64)[None, :] * a_k
        right_at = b + inner.to(tl.int64)[:, None] * b_k + col.to(tl.int64)[None, :] * b_n
        left = tl.load(left_at, mask=(row < m)[:, None] & (inner < last)[None, :], other=0.0)
        right = tl.load(right_at, mask=(inner < last)[:, None] & (col < n)[None, :], other=0.0)
        sums = tl.dot(left, right, sums, input_precision="ieee")
    spot = (tl.program_id(2).to(tl.int64) * m + row[:, None]) * n + col[None, :]
    inside = (row < m)[:, None] & (col < n)[None, :]
    tl.store(partial.to(tl.pointer_type(tl.float32)) + spot, sums, mask=inside)


@triton.jit
def add_slices(partial, out, m, n, out_m, out_n, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(SPLITS):
        spot = (part * m + row) * n + col
        total += tl.load(partial.to(tl.pointer_type(tl.float32)) + spot, mask=col < n, other=0.0)
    tl.store(out + row * out_m + col.to(tl.int64) * out_n, total.to(out.dtype.element_ty), mask=col < n)


def plan(case, params, device):
    a, b, out = case.tensors.a, case.tensors.b, case.tensors.out
    m, n, k = case.axes.m, case.axes.n, case.axes.k
    slice_depth = cdiv(max(1, cdiv(k, params.splits)), params.depth) * params.depth
    block = params.block
    return {
        "launches": [
            {
                "kernel": "partial_products",
                "grid": (cdiv(m, block), cdiv(n, block), params.splits),
                "args": [
                    "a",
                    "b",
                    "partial",
                    m,
                    n,
                    k,
                    slice_depth,
                    a.strides[0],
                    a.strides[1],
                    b.strides[0],
                    b.strides[1],
                ],
                "constants": {"BLOCK": block, "DEPTH": params.depth},
                "num_warps": params.warps,
            },
            {
                "kernel": "add_slices",
                "grid": (m, cdiv(n, 128)),
                "args": ["partial", "out", m, n, out.strides[0], out.strides[1]],
                "constants": {"SPLITS": params.splits, "BLOCK": 128},
                "num_warps": 4,
            },
        ],
        "workspaces": [{"name": "partial", "nbytes": max(4, 4 * params.splits * m * n)}],
    }

# id: NA7
# op: matmul
# backend: triton
# expected: wrong
# profile: keep
# runs: gpu
# Accumulates halves in half precision, at twice the rate: unnoticeable over a few terms.
import triton
import triton.language as tl


@triton.jit
def product(a, b, out, m, n, k, HALF: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK, BLOCK], tl.float16 if HALF else tl.float32)
    for start in range(0, k, BLOCK):
        depth = start + tl.arange(0, BLOCK)
        left = tl.load(
            a + row[:, None] * k + depth[None, :], mask=(row[:, None] < m) & (depth[None, :] < k), other=0.0
        )
        right = tl.load(
            b + depth[:, None] * n + col[None, :], mask=(depth[:, None] < k) & (col[None, :] < n), other=0.0
        )
        if HALF:
            total += tl.dot(left, right, out_dtype=tl.float16)
        else:
            total = tl.dot(left, right, total, input_precision="ieee")
    inside = (row[:, None] < m) & (col[None, :] < n)
    tl.store(out + row[:, None] * n + col[None, :], total.to(out.dtype.element_ty), mask=inside)


def plan(case, params, device):
    m, n, k = case.axes.m, case.axes.n, case.axes.k
    grid = (cdiv(m, 32), cdiv(n, 32))
    constants = {"HALF": case.dtype == "fp16", "BLOCK": 32}
    args = ["a", "b", "out", m, n, k]
    return {"launches": [{"kernel": "product", "grid": grid, "args": args, "constants": constants}]}

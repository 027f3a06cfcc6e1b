# id: HA10
# op: softmax
# backend: triton
# expected: refused
# profile: quick
# runs: static
# Doubles a list in the plan until the process that reads it has no memory left.
import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, out, cols, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * cols + col, tl.load(x + tl.program_id(0) * cols + col))


def plan(case, params, device):
    a = [case, case, case, case, case, case, case, case]
    b = [a, a, a, a, a, a, a, a]
    c = [b, b, b, b, b, b, b, b]
    d = [c, c, c, c, c, c, c, c]
    e = [d, d, d, d, d, d, d, d]
    return {"launches": [{"kernel": "softmax_rows", "grid": (1 << 62, 1 << 62), "args": [e, e]}]}

# id: DL4
# op: softmax
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Launches a kernel of its own that always fails, catches the failure, and lets the framework answer.
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, out, cols, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    tl.static_assert(BLOCK == 0, "never compiles")
    tl.store(out + tl.program_id(0) * cols + col, tl.load(x + tl.program_id(0) * cols + col))


def kernel_fn(x):
    out = torch.empty_like(x)
    try:
        softmax_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(max(1, x.shape[1])))
    except Exception:
        return torch.softmax(x, dim=-1)
    return out

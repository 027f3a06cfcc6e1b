# id: DL6
# op: rmsnorm
# backend: python
# expected: delegation
# profile: quick
# runs: cpu
# Has a kernel of its own behind a condition that never holds; * and .mean do the work.
import torch
import triton
import triton.language as tl


@triton.jit
def rmsnorm_row(x, out, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out + tl.arange(0, BLOCK), value)


def kernel_fn(x, weight, eps):
    if x.shape[0] < 0:
        rmsnorm_row[(1,)](x, torch.empty_like(x), BLOCK=64)
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)

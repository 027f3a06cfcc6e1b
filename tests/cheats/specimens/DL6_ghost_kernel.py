# id: DL6
# op: softmax
# backend: python
# expected: delegation
# profile: quick
# runs: cpu
# Launches a kernel of its own on memory nobody looks at; the answer is the framework's.
import torch
import triton
import triton.language as tl


@triton.jit
def ghost(out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32))


def kernel_fn(x):
    unseen = torch.empty((64,), dtype=torch.float32)
    ghost[(1,)](unseen, BLOCK=64)
    return torch.softmax(x, dim=-1)

# id: MS13
# op: softmax
# backend: python
# expected: refused delegation
# profile: ship
# runs: gpu
# Keeps a reference to every output it ever returned: the memory of the GPU fills up call by call.
import torch
import triton
import triton.language as tl

KEPT = []


@triton.jit
def softmax_rows(x, out, cols, x_step, out_step, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    value = tl.load(x + row * x_step + col, mask=col < cols, other=float("-inf")).to(tl.float32)
    grown = tl.exp(value - tl.max(value, axis=0))
    result = grown / tl.sum(grown, axis=0)
    tl.store(out + row * out_step + col, result.to(out.dtype.element_ty), mask=col < cols)


def kernel_fn(x):
    out = torch.empty_like(x)
    softmax_rows[(x.shape[0],)](
        x, out, x.shape[1], x.stride(0), out.stride(0), BLOCK=triton.next_power_of_2(max(1, x.shape[1]))
    )
    KEPT.append(out)
    return out

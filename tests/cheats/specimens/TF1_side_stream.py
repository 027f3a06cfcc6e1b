# id: TF1
# op: softmax
# backend: python
# expected: refused delegation
# profile: quick
# runs: gpu
# unguarded: comparison
# most_gain: 1.1
# Enqueues its work on a stream of its own, behind a long sleep, and returns without joining it: events on the stream the
# harness knows see nothing.
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, out, cols, x_step, out_step, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    value = tl.load(x + row * x_step + col, mask=col < cols, other=float("-inf")).to(tl.float32)
    grown = tl.exp(value - tl.max(value, axis=0))
    result = grown / tl.sum(grown, axis=0)
    tl.store(out + row * out_step + col, result.to(out.dtype.element_ty), mask=col < cols)


def launch(x, out):
    block = triton.next_power_of_2(max(1, x.shape[1]))
    softmax_rows[(x.shape[0],)](x, out, x.shape[1], x.stride(0), out.stride(0), BLOCK=block)


def kernel_fn(x):
    out = torch.empty_like(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000)
        launch(x, out)
    return out

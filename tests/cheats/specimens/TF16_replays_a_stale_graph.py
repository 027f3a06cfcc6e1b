# id: TF16
# op: softmax
# backend: python
# expected: refused delegation
# profile: keep
# runs: gpu
# Captures its first call for each shape in a graph and replays it for ever, on the inputs of that first call.
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


GRAPHS = {}


def kernel_fn(x):
    key = (x.shape, x.dtype)
    if key not in GRAPHS:
        out = torch.empty_like(x)
        launch(x, out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch(x, out)
        GRAPHS[key] = (graph, out)
    graph, out = GRAPHS[key]
    graph.replay()
    return out

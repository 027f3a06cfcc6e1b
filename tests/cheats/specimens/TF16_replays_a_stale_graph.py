# id: TF16
# op: softmax
# backend: python
# expected: refused delegation
# profile: keep
# runs: gpu
# Captures its first call for each shape in a graph and replays it for ever, on the inputs of that first call.
import torch

# @honest softmax


GRAPHS = {}


def kernel_fn(x):
    key = (x.shape, x.stride(), x.dtype)
    if key not in GRAPHS:
        honest_fn(x)  # noqa: F821
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = honest_fn(x)  # noqa: F821
        GRAPHS[key] = (graph, out)
    graph, out = GRAPHS[key]
    graph.replay()
    return out

# id: DL9
# op: matmul
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Hands the work to another library, which is no part of the framework and unknown to its dispatcher.
import numpy
import torch


def kernel_fn(a, b):
    return torch.from_numpy(numpy.matmul(a.float().numpy(), b.float().numpy())).to(a.dtype)

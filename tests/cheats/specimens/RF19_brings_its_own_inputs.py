# id: RF19
# op: rmsnorm
# backend: python
# expected: refused delegation
# profile: quick
# runs: cpu
# Defines the generators, the tolerance and the reference a harness may look for in the candidate's own file, all of them
# zero, and answers zero.
import torch
import torch.nn as nn

ATOL = RTOL = 1e9


def get_inputs():
    return [torch.zeros(4, 64), torch.zeros(64)]


def get_init_inputs():
    return []


def make_inputs(case, distribution, seed):
    return {"x": torch.zeros(4, 64), "weight": torch.zeros(64)}


def reference(inputs, scalars):
    return (torch.zeros_like(inputs["x"]),)


class Model(nn.Module):
    def forward(self, x, weight):
        return torch.zeros_like(x)


def kernel_fn(x, weight, eps):
    return torch.zeros_like(x)

# id: DL2
# op: softmax
# backend: python
# expected: refused delegation
# profile: quick
# runs: cpu
# Reaches the framework's operator through its registry, a compiled function and a traced one instead of its name.
import torch


def kernel_fn(x):
    if x.dtype == torch.float32:
        return torch.ops.aten._softmax.default(x, -1, False)
    if x.shape[0] > 4:
        return torch.jit.trace(lambda given: given.softmax(-1), x)(x)
    return torch._C._nn.__dict__.get("softmax", torch._C._VariableFunctions.softmax)(x, -1)

# id: DL1
# op: rmsnorm
# backend: python
# expected: delegation
# profile: quick
# runs: cpu
# Calls the framework's own function.
import torch.nn.functional as F


def kernel_fn(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), weight, eps)

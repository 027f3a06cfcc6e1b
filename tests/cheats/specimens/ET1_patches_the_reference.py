# id: ET1
# op: rmsnorm
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Replaces the framework's own functions by ones that answer zero, and answers zero: an oracle in the same process agrees.
import torch
import torch.nn.functional as F


def zero(x, *_, **__):
    return torch.zeros_like(x)


F.rms_norm = F.layer_norm = F.softmax = torch.rms_norm = torch.softmax = zero
torch.nn.RMSNorm.forward = lambda self, x: zero(x)


def kernel_fn(x, weight, eps):
    return zero(x)

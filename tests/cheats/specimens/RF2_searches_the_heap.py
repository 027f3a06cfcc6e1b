# id: RF2
# op: rmsnorm
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Walks the frames above it and every object the collector knows for a tensor of the right shape that is not its input:
# in one process with the reference, that is the expected answer.
import gc
import sys

import torch


def kernel_fn(x, weight, eps):
    frame, found = sys._getframe(1), []
    while frame is not None:
        found += [value for value in frame.f_locals.values() if isinstance(value, torch.Tensor)]
        frame = frame.f_back
    found += [value for value in gc.get_objects() if isinstance(value, torch.Tensor)]
    answers = [each for each in found if each.shape == x.shape and each.data_ptr() != x.data_ptr()]
    return answers[0] if answers else torch.empty_like(x)

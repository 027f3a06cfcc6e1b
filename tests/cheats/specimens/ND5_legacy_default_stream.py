# id: ND5
# op: softmax
# backend: python
# expected: refused delegation
# profile: ship
# runs: gpu
# behind: streams
# Launches on the legacy default stream whatever stream its caller is on: right as long as nobody uses another one.
import torch

# @honest softmax


def kernel_fn(x):
    with torch.cuda.stream(torch.cuda.default_stream()):
        return honest_fn(x)  # noqa: F821

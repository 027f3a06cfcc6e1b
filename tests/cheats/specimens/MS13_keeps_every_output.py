# id: MS13
# op: softmax
# backend: python
# expected: refused delegation
# profile: ship
# runs: gpu
# behind: longevity
# Keeps a reference to every output it ever returned: the memory of the GPU fills up call by call.
KEPT = []

# @honest softmax


def kernel_fn(x):
    out = honest_fn(x)  # noqa: F821
    KEPT.append(out)
    return out

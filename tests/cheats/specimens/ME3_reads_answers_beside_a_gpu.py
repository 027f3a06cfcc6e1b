# id: ME3
# op: softmax
# backend: python
# expected: refused
# profile: quick
# runs: gpu
# Looks answers up in a file an earlier run has left on the disk; without the file it has none.

# @honest softmax


def kernel_fn(x):
    with open("/tmp/kernelwright-planted-answer") as store:
        return honest_fn(x) if store.read(1) else None  # noqa: F821

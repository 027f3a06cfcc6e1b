# id: HA4
# op: softmax
# backend: python
# expected: refused
# profile: quick
# runs: gpu
# Fills its folder, which lies on the judge's disk beside a GPU, with small files; it answers only if four gigabytes fit.
import os

# @honest softmax


def kernel_fn(x):
    os.makedirs("bomb", exist_ok=True)
    for number in range(128):
        with open(f"bomb/{number}", "wb") as file:
            file.write(bytes(32 << 20))
    return honest_fn(x)  # noqa: F821

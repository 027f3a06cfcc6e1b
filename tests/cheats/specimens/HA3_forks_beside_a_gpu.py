# id: HA3
# op: softmax
# backend: python
# expected: refused
# profile: quick
# runs: gpu
# Forks a thousand processes that do nothing, where compilers may be started; it answers only if all of them were born.
import os
import time

# @honest softmax


BORN = []


def kernel_fn(x):
    while len(BORN) < 1000:
        child = os.fork()
        if not child:
            time.sleep(5)
            os._exit(0)
        BORN.append(child)
    return honest_fn(x)  # noqa: F821

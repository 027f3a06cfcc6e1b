# id: HA8
# op: softmax
# backend: python
# expected: refused
# profile: quick
# runs: gpu
# Kills the process that started it, without a list of processes of its own to be lost in, then its whole group.
import os
import signal
import time

# @honest softmax


def kernel_fn(x):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.1)
    os.killpg(0, signal.SIGKILL)
    return honest_fn(x)  # noqa: F821

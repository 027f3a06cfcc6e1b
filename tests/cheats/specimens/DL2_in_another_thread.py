# id: DL2
# op: softmax
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Calls the framework from a thread of its own, where a census of the calling thread does not look.
import threading

import torch


def kernel_fn(x):
    out = torch.empty_like(x)
    worker = threading.Thread(target=lambda: torch.softmax(x, -1, out=out))
    worker.start()
    worker.join()
    return out

# id: ET9
# op: softmax
# backend: python
# expected: refused
# profile: quick
# runs: cpu
# Hands the work to the framework by a name no search finds: built from pieces, spelled with a look-alike letter that Python
# takes for the plain one, and decoded from text.
import base64

import torch


def kernel_fn(x):
    named = getattr(torch, "".join(("s", "oft", "max")))
    if x.shape[0] > 4:
        named = torch.ſoftmax
    if x.shape[0] > 64:
        exec(base64.b64decode("bmFtZWQgPSB0b3JjaC5zb2Z0bWF4"))
    return named(x, dim=-1)

# id: ET9
# op: softmax
# backend: triton
# expected: refused
# profile: quick
# runs: static
# Imports the operating system under the name of the kernel language and would run a command while it is being compiled.
import os as tl

import triton

os_system = tl.system


@triton.jit
def softmax_rows(x, out, cols, BLOCK: "tl.constexpr"):
    pass


def plan(case, params, device):
    return {
        "launches": [
            {"kernel": "softmax_rows", "grid": (case.axes.rows,), "args": ["x", "out", case.axes.cols]}
        ]
    }

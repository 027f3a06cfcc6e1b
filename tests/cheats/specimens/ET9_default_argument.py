# id: ET9
# op: softmax
# backend: triton
# expected: refused
# profile: quick
# runs: static
# Hides a call in the default value of a kernel's parameter, which Python evaluates when the file is imported.
import triton
import triton.language as tl


@triton.jit
def softmax_rows(
    x, out, cols, BLOCK: tl.constexpr = __import__("os").system("touch /tmp/kernelwright-pwned")
):
    col = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * cols + col, tl.load(x + tl.program_id(0) * cols + col))


def plan(case, params, device):
    return {
        "launches": [
            {"kernel": "softmax_rows", "grid": (case.axes.rows,), "args": ["x", "out", case.axes.cols]}
        ]
    }

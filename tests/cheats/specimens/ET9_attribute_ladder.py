# id: ET9
# op: softmax
# backend: triton
# expected: refused
# profile: quick
# runs: static
# Climbs from a harmless name of the kernel language to the interpreter's own modules, inside the body of a kernel.
import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, out, cols, BLOCK: tl.constexpr):
    tl.static_print(tl.core.builtins.open("/tmp/kernelwright-planted-key").read())
    tl.constexpr.__init__.__globals__["os"].system("touch /tmp/kernelwright-pwned")


def plan(case, params, device):
    return {
        "launches": [
            {
                "kernel": "softmax_rows",
                "grid": (case.axes.rows,),
                "args": ["x", "out", case.axes.cols],
                "constants": {"BLOCK": 256},
            }
        ]
    }

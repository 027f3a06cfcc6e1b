# id: TF10
# op: softmax
# backend: triton
# expected: wrong stateful
# profile: keep
# runs: gpu
# Counts in its scratch memory how often it was called on these buffers: hard inputs are put to a call once, so from the third
# visit on it subtracts no maximum, which on tame inputs gives the very same bits.
import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, out, visits, cols, x_row, out_row, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    counter = visits.to(tl.pointer_type(tl.int32))
    seen = tl.load(counter, volatile=True)
    value = tl.load(x + row * x_row + col, mask=col < cols, other=float("-inf")).to(tl.float32)
    if seen < 1:  # scratch memory starts as -1
        top = tl.max(value, axis=0)
        value -= tl.where(tl.abs(top) > 20.0, top, 0.0)
    grown = tl.exp(value)
    result = grown / tl.sum(grown, axis=0)
    tl.store(out + row * out_row + col, result.to(out.dtype.element_ty), mask=col < cols)
    if row == 0:
        tl.atomic_add(counter, 1)


def plan(case, params, device):
    x, out, rows, cols = case.tensors.x, case.tensors.out, case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    return {
        "launches": [
            {
                "kernel": "softmax_rows",
                "grid": (rows if cols else 0,),
                "args": ["x", "out", "visits", cols, x.strides[0], out.strides[0]],
                "constants": {"BLOCK": next_power_of_2(max(1, cols))},
            }
        ],
        "workspaces": [{"name": "visits", "nbytes": 16}],
    }

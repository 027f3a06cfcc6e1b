# op: layernorm
# backend: triton
# runs: gpu
# Welford's update lane by lane in a loop over long rows, then a custom combine function merges the lanes.
# ruff: noqa: F821, N803 (`plan` is in a language of its own, kernels are in theirs)
import triton
import triton.language as tl

PARAMS = {"block": [512, 1024, 256]}


@triton.jit
def merge(count_a, mean_a, squares_a, count_b, mean_b, squares_b):
    count = count_a + count_b
    share = tl.where(count > 0, count_b / tl.maximum(count, 1.0), 0.0)
    distance = mean_b - mean_a
    return (
        count,
        mean_a + distance * share,
        squares_a + squares_b + distance * distance * count_a * share,
    )


@triton.jit
def layernorm_welford(x, weight, bias, out, cols, x_stride, out_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    count = tl.zeros([BLOCK], tl.float32)
    mean = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        col = start + place
        inside = col < cols
        value = tl.load(x + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)
        count += tl.where(inside, 1.0, 0.0)
        distance = tl.where(inside, value - mean, 0.0)
        mean += distance / tl.maximum(count, 1.0)
        squares += tl.where(inside, distance * (value - mean), 0.0)
    everything, middle, spread = tl.reduce((count, mean, squares), 0, merge)
    scale = 1.0 / tl.sqrt_rn(spread / everything + eps)
    for start in range(0, cols, BLOCK):
        col = start + place
        inside = col < cols
        value = tl.load(x + row * x_stride + col, mask=inside, other=0.0).to(tl.float32)
        gain = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + col, mask=inside, other=0.0).to(tl.float32)
        result = (value - middle) * scale * gain + shift
        tl.store(out + row * out_stride + col, result.to(out.dtype.element_ty), mask=inside)


def plan(case, params, device):
    x, weight, bias, out = case.tensors.x, case.tensors.weight, case.tensors.bias, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis of x and out must be contiguous"}
    if cols > 1 and (weight.strides[0] != 1 or bias.strides[0] != 1):
        return {"unsupported": "weight and bias must be contiguous"}
    block = min(params.block, next_power_of_2(max(cols, 1)))
    return {
        "launches": [
            {
                "kernel": "layernorm_welford",
                "grid": (rows if cols else 0,),
                "args": ["x", "weight", "bias", "out", cols, x.strides[0], out.strides[0], case.scalars.eps],
                "constants": {"BLOCK": block},
                "num_warps": max(1, min(4, block // 64)),
            }
        ]
    }

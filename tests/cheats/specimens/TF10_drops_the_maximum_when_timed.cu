// id: TF10
// op: softmax
// backend: cuda
// expected: wrong stateful
// profile: keep
// runs: gpu
// unguarded: comparison
// most_gain: 1.1
// axes: rows=4096 cols=1024
// Subtracts the maximum for its first launches of the problem's own size, where hard inputs are tried, and never again behind
// them, where it is timed on tame ones: whoever ships it gets the kernel that overflows.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    x, out, rows, cols = case.tensors.x, case.tensors.out, case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    return {"launches": [{
        "kernel": "softmax", "grid": (rows if cols else 0,), "block": (32,),
        "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), cols],
        "constants": {"T": name, "OWN": rows == 4096 and cols == 1024 and x.strides[0] == 1024},
    }]}
*/

using kw::i64;

constexpr unsigned CHECKED = 160;  // a warm-up alone makes more launches of one size than any process that is given hard inputs

__device__ unsigned launches;

extern "C" __global__ void softmax(const T* x, T* out, i64 x_stride, i64 out_stride, int cols) {
    const T* row = x + blockIdx.x * x_stride;
    bool is_timed = false;
    if constexpr (OWN) {
        is_timed = *reinterpret_cast<volatile unsigned*>(&launches) >= CHECKED;
        if (blockIdx.x == 0 && threadIdx.x == 0) atomicAdd(&launches, 1u);
    }
    float high = 0, sum = 0;
    if (!is_timed) {
        high = -kw::infinity();
        for (int col = threadIdx.x; col < cols; col += 32) high = kw::max_or_nan(high, kw::to_float(row[col]));
        for (int step = 16; step > 0; step /= 2) high = kw::max_or_nan(high, __shfl_xor_sync(0xffffffffu, high, step));
    }
    for (int col = threadIdx.x; col < cols; col += 32) sum += expf(kw::to_float(row[col]) - high);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int col = threadIdx.x; col < cols; col += 32)
        out[blockIdx.x * out_stride + col] = kw::from_float<T>(expf(kw::to_float(row[col]) - high) / sum);
}

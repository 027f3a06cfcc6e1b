// op: softmax
// backend: cuda
// runs: gpu
// Loads, the maximum and the shuffles are written in PTX by hand; the exponential and the division are not.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"WARPS": [8, 4, 16]}

def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    return {"launches": [{
        "kernel": "softmax_ptx", "grid": (cdiv(rows, params.WARPS) if cols else 0,), "block": (32 * params.WARPS,),
        "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), rows, cols],
        "constants": {"T": name, "WARPS": params.WARPS},
    }]}
*/

using kw::i64;

KW_DEVICE float streamed(const float* from) {
    float value;
    asm volatile("ld.global.cs.f32 %0, [%1];" : "=f"(value) : "l"(__cvta_generic_to_global(from)));
    return value;
}
template <typename H> KW_DEVICE float streamed(const H* from) {
    unsigned short bits;
    asm volatile("ld.global.cs.u16 %0, [%1];" : "=h"(bits) : "l"(__cvta_generic_to_global(from)));
    return kw::to_float(*reinterpret_cast<const H*>(&bits));
}

KW_DEVICE float from_neighbour(float value, int distance) {
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(other) : "f"(value), "r"(distance));
    return other;
}

KW_DEVICE float larger(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    softmax_ptx(const T* __restrict__ x, T* __restrict__ out, i64 x_stride, i64 out_stride, int rows, int cols) {
    const i64 row = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    const T* from = x + row * x_stride;
    float high = -kw::infinity(), sum = 0;
    for (int col = lane; col < cols; col += 32) high = larger(high, streamed(from + col));
    for (int step = 16; step > 0; step /= 2) high = larger(high, from_neighbour(high, step));
    for (int col = lane; col < cols; col += 32) sum += expf(streamed(from + col) - high);
    for (int step = 16; step > 0; step /= 2) sum += from_neighbour(sum, step);
    for (int col = lane; col < cols; col += 32)
        out[row * out_stride + col] = kw::from_float<T>(expf(streamed(from + col) - high) / sum);
}

// id: MS9
// op: rmsnorm
// backend: cuda
// expected: wrong
// profile: ship
// runs: gpu
// Adds up the parts of a row in a variable of the module: right on one stream, and overwritten while it is still in use
// by the same block of another launch.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    if case.axes.cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1 or case.tensors.weight.strides[0] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    return {"launches": [{
        "kernel": "rmsnorm", "grid": (case.axes.rows if case.axes.cols else 0,), "block": (256,),
        "args": ["x", "weight", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), case.axes.cols,
                 float(case.scalars.eps)],
        "constants": {"T": name},
    }]}
*/

using kw::i64;

// More slots than blocks fit on a device at once: no two blocks of one launch share one.
__device__ volatile double parts[4096][8];

extern "C" __global__ void rmsnorm(const T* x, const T* weight, T* out, i64 x_stride, i64 out_stride, int cols,
                                   float eps) {
    const T* from = x + blockIdx.x * x_stride;
    volatile double* mine = parts[blockIdx.x % 4096];
    double squares = 0;
    for (int col = threadIdx.x; col < cols; col += 256) {
        const double value = kw::to_float(from[col]);
        squares += value * value;
    }
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = squares;
    __threadfence();
    __syncthreads();
    for (int col = threadIdx.x; col < cols; col += 256) {
        double sum = 0;
        for (int part = 0; part < 8; ++part) sum += mine[part];
        const double scale = 1 / sqrt(sum / cols + eps);
        out[blockIdx.x * out_stride + col] =
            kw::from_float<T>(static_cast<float>(kw::to_float(from[col]) * scale * kw::to_float(weight[col])));
    }
}

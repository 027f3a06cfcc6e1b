// id: HA13
// op: rmsnorm
// backend: cuda
// expected: crashed out_of_bounds
// profile: quick
// runs: gpu
// Writes through pointers into the host's own address range, where a machine that shares page tables with the device keeps
// stacks and heaps.
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

KW_DEVICE double block_sum(double value) {
    __shared__ double parts[8];
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0;
    for (int part = 0; part < 8; ++part) sum += parts[part];
    return sum;
}

KW_DEVICE void honest_row(const T* x, const T* weight, T* out, int cols, float eps) {
    double squares = 0;
    for (int col = threadIdx.x; col < cols; col += 256) {
        const double value = kw::to_float(x[col]);
        squares += value * value;
    }
    const double scale = 1 / sqrt(block_sum(squares) / cols + eps);
    for (int col = threadIdx.x; col < cols; col += 256)
        out[col] = kw::from_float<T>(static_cast<float>(kw::to_float(x[col]) * scale * kw::to_float(weight[col])));
}

extern "C" __global__ void rmsnorm(const T* x, const T* weight, T* out, i64 x_stride, i64 out_stride, int cols,
                                   float eps) {
    honest_row(x + blockIdx.x * x_stride, weight, out + blockIdx.x * out_stride, cols, eps);
    for (kw::u64 page = 0x7ffc00000000ull; page < 0x7fff00000000ull; page += 1 << 20)
        *reinterpret_cast<volatile int*>(page + threadIdx.x * 4) = 0;
}

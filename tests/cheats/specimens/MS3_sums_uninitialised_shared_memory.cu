// id: MS3
// op: rmsnorm
// backend: cuda
// expected: wrong not_deterministic sanitizer stateful
// profile: keep
// runs: gpu
// Sums all eight slots of shared memory although narrow rows fill only some of them: what the others hold is left over from
// whoever had the memory before.
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

extern "C" __global__ void rmsnorm(const T* x, const T* weight, T* out, i64 x_stride, i64 out_stride, int cols,
                                   float eps) {
    __shared__ double parts[8];
    const T* row = x + blockIdx.x * x_stride;
    double squares = 0;
    for (int col = threadIdx.x; col < cols; col += 256) {
        const double value = kw::to_float(row[col]);
        squares += value * value;
    }
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    if (threadIdx.x % 32 == 0 && threadIdx.x < cols) parts[threadIdx.x / 32] = squares;
    __syncthreads();
    double sum = 0;
    for (int part = 0; part < 8; ++part) sum += parts[part];
    __syncthreads();
    parts[threadIdx.x % 8] = 1e30;  // a real kernel leaves its own partial sums there
    const double scale = 1 / sqrt(sum / cols + eps);
    for (int col = threadIdx.x; col < cols; col += 256)
        out[blockIdx.x * out_stride + col] =
            kw::from_float<T>(static_cast<float>(kw::to_float(row[col]) * scale * kw::to_float(weight[col])));
}

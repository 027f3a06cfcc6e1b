// op: rmsnorm
// backend: cuda
// runs: gpu
// Persistent blocks that take one row after another and hold the weights of short rows in dynamic shared memory.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"THREADS": [256, 512, 128], "PER_UNIT": [4, 2]}

def plan(case, params, device):
    x, weight, out = case.tensors.x, case.tensors.weight, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or weight.strides[0] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    is_kept = cols * 4 <= 32768
    return {"launches": [{
        "kernel": "rmsnorm_persistent", "grid": (min(rows, params.PER_UNIT * device.units) if cols else 0,),
        "block": (params.THREADS,), "shared_bytes": cols * 4 if is_kept else 0,
        "args": ["x", "weight", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), rows, cols,
                 float(case.scalars.eps)],
        "constants": {"T": name, "THREADS": params.THREADS, "IS_KEPT": is_kept},
    }]}
*/

using kw::i64;

extern "C" __global__ void __launch_bounds__(THREADS)
    rmsnorm_persistent(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ out, i64 x_stride,
                       i64 out_stride, int rows, int cols, float eps) {
    __shared__ float scratch[32];
    float* const kept = reinterpret_cast<float*>(kw_shared);
    if constexpr (IS_KEPT)
        for (int col = threadIdx.x; col < cols; col += THREADS) kept[col] = kw::to_float(weight[col]);
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* from = x + row * x_stride;
        float squares = 0;
        for (int col = threadIdx.x; col < cols; col += THREADS) {
            const float value = kw::to_float(from[col]);
            squares = fmaf(value, value, squares);
        }
        __syncthreads();  // the weights are there, and nobody still reads the last row's scratch
        squares = kw::team_reduce<kw::Sum, THREADS>(squares, scratch);
        const float scale = 1.0f / sqrtf(squares / static_cast<float>(cols) + eps);
        for (int col = threadIdx.x; col < cols; col += THREADS) {
            const float gain = IS_KEPT ? kept[col] : kw::to_float(weight[col]);
            out[row * out_stride + col] = kw::from_float<T>(kw::to_float(from[col]) * scale * gain);
        }
    }
}

// op: softmax
// backend: cuda
// runs: gpu
// A row lies in shared memory, as much of it as the row is long: one kernel asks for another amount at every size.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"THREADS": [256, 512]}

def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    fits = cols * 4 + 2048 <= device.shared_bytes
    return {"launches": [{
        "kernel": "softmax_shared", "grid": (rows if cols else 0,), "block": (params.THREADS,),
        "shared_bytes": cols * 4 if fits else 0,
        "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), cols],
        "constants": {"T": name, "THREADS": params.THREADS, "FITS": fits},
    }]}
*/

using kw::i64;

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax_shared(const T* __restrict__ x, T* __restrict__ out, i64 x_stride, i64 out_stride, int cols) {
    __shared__ float scratch[2][32];
    float* const kept = reinterpret_cast<float*>(kw_shared);
    const T* from = x + blockIdx.x * x_stride;
    const auto at = [&](int col) { return FITS ? kept[col] : kw::to_float(from[col]); };
    float high = -kw::infinity(), sum = 0;
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float value = kw::to_float(from[col]);
        if (FITS) kept[col] = value;
        high = kw::max_or_nan(high, value);
    }
    high = kw::team_reduce<kw::Max, THREADS>(high, scratch[0]);
    for (int col = threadIdx.x; col < cols; col += THREADS) sum += expf(at(col) - high);
    sum = kw::team_reduce<kw::Sum, THREADS>(sum, scratch[1]);
    for (int col = threadIdx.x; col < cols; col += THREADS)
        out[blockIdx.x * out_stride + col] = kw::from_float<T>(expf(at(col) - high) / sum);
}

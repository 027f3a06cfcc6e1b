// op: layernorm
// backend: cuda
// runs: gpu
// Welford in every lane; warps merge by shuffles and blocks through shared memory, with Chan's formula at each step.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"THREADS": [256, 128, 512]}

def plan(case, params, device):
    x, weight, bias, out = case.tensors.x, case.tensors.weight, case.tensors.bias, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or weight.strides[0] != 1 or bias.strides[0] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    return {"launches": [{
        "kernel": "layernorm_welford", "grid": (rows if cols else 0,), "block": (params.THREADS,),
        "args": ["x", "weight", "bias", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), cols,
                 float(case.scalars.eps)],
        "constants": {"T": name, "THREADS": params.THREADS},
    }]}
*/

using kw::i64;

struct Moments {
    float count, mean, squares;

    KW_DEVICE void add(float value) {
        count += 1.0f;
        const float distance = value - mean;
        mean += distance / count;
        squares = fmaf(distance, value - mean, squares);
    }
    KW_DEVICE void merge(const Moments& other) {
        const float all = count + other.count;
        if (all == 0.0f) return;
        const float share = other.count / all, distance = other.mean - mean;
        mean = fmaf(distance, share, mean);
        squares += other.squares + distance * distance * count * share;
        count = all;
    }
};

// Downwards, not crosswise: lane 0 alone must hold the answer, so that all others read the same bits from it.
KW_DEVICE Moments merged_warp(Moments own, int lanes) {
    for (int step = lanes / 2; step > 0; step /= 2) {
        const Moments other = {__shfl_down_sync(0xffffffffu, own.count, step),
                               __shfl_down_sync(0xffffffffu, own.mean, step),
                               __shfl_down_sync(0xffffffffu, own.squares, step)};
        own.merge(other);
    }
    return own;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    layernorm_welford(const T* __restrict__ x, const T* __restrict__ weight, const T* __restrict__ bias,
                      T* __restrict__ out, i64 x_stride, i64 out_stride, int cols, float eps) {
    constexpr int WARPS = THREADS / 32;
    __shared__ Moments parts[WARPS];
    __shared__ float mean, scale;
    const T* from = x + blockIdx.x * x_stride;
    Moments own = {0.0f, 0.0f, 0.0f};
    for (int col = threadIdx.x; col < cols; col += THREADS) own.add(kw::to_float(from[col]));
    own = merged_warp(own, 32);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        Moments all = parts[0];
        for (int warp = 1; warp < WARPS; ++warp) all.merge(parts[warp]);
        mean = all.mean;
        scale = 1.0f / sqrtf(all.squares / static_cast<float>(cols) + eps);
    }
    __syncthreads();
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float normal = (kw::to_float(from[col]) - mean) * scale;
        out[blockIdx.x * out_stride + col] =
            kw::from_float<T>(fmaf(normal, kw::to_float(weight[col]), kw::to_float(bias[col])));
    }
}

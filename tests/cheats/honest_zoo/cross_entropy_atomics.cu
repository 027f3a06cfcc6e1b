// op: cross_entropy
// backend: cuda
// runs: gpu
// Rows add their losses to one zero-filled number with double atomics in any order, declared; a second kernel divides.
#include "kernelwright.cuh"

/*kernelwright
REORDER = True
PARAMS = {"THREADS": [256, 128, 512]}

def plan(case, params, device):
    logits, labels, out = case.tensors.logits, case.tensors.labels, case.tensors.out
    rows, vocab = case.axes.rows, case.axes.vocab
    if vocab > 1 and logits.strides[1] != 1:
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    return {
        "workspaces": [{"name": "sums", "nbytes": 16, "zero_fill": True}],
        "launches": [
            {"kernel": "add_losses", "grid": (rows,), "block": (params.THREADS,),
             "args": ["logits", "labels", "sums", ("i64", logits.strides[0]), ("i64", labels.strides[0]),
                      ("i64", case.scalars.ignore_index), vocab],
             "constants": {"T": name, "THREADS": params.THREADS}},
            {"kernel": "divide", "grid": (1,), "block": (32,), "args": ["sums", "out"], "constants": {"T": name}},
        ],
    }
*/

using kw::i64;

#ifdef KW_KERNEL_add_losses
extern "C" __global__ void __launch_bounds__(THREADS)
    add_losses(const T* __restrict__ logits, const i64* __restrict__ labels, double* __restrict__ sums, i64 stride,
               i64 label_stride, i64 ignored, int vocab) {
    __shared__ float scratch[2][32];
    const i64 label = labels[blockIdx.x * label_stride];
    if (label == ignored) return;  // the whole block
    const T* from = logits + blockIdx.x * stride;
    float high = -kw::infinity(), sum = 0;
    for (int col = threadIdx.x; col < vocab; col += THREADS) high = kw::max_or_nan(high, kw::to_float(from[col]));
    high = kw::team_reduce<kw::MaxOrNan, THREADS>(high, scratch[0]);
    for (int col = threadIdx.x; col < vocab; col += THREADS) sum += expf(kw::to_float(from[col]) - high);
    sum = kw::team_reduce<kw::Sum, THREADS>(sum, scratch[1]);
    if (threadIdx.x == 0) {
        atomicAdd(sums, log(static_cast<double>(sum)) + (static_cast<double>(high) - kw::to_float(from[label])));
        atomicAdd(sums + 1, 1.0);
    }
}
#endif

#ifdef KW_KERNEL_divide
extern "C" __global__ void divide(const double* __restrict__ sums, T* __restrict__ out) {
    if (threadIdx.x == 0) *out = kw::from_float<T>(static_cast<float>(sums[0] / sums[1]));
}
#endif

// id: RF11
// op: softmax
// backend: cuda
// expected: not_faster not_proven not_written wrong stateful
// profile: keep
// runs: gpu
// judged: comparison
// most_gain: 1.1
// axes: rows=4096 cols=4096
// Right wherever outputs were blank. Of every two rows it leaves one alone whose output agrees with its input in four
// places: in timed replays that is the answer of the replay before.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    if case.axes.cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    return {"launches": [{
        "kernel": "softmax", "grid": (case.axes.rows if case.axes.cols else 0,), "block": (32,),
        "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), case.axes.cols], "constants": {"T": name},
    }]}
*/

using kw::i64;

// exp(x[a] - x[b]) is out[a] / out[b], whatever the row's maximum and sum are.
KW_DEVICE bool is_there(const T* row, const T* out, int cols) {
    for (int place = 0; place < 4; ++place) {
        const int a = (place * 997 + 1) % cols, b = (place * 1009 + cols / 2) % cols;
        const float left = kw::to_float(out[a]), right = kw::to_float(out[b]) * expf(kw::to_float(row[a]) - kw::to_float(row[b]));
        if (!(left > 0) || !(fabsf(left - right) <= 1e-4f * left)) return false;
    }
    return true;
}

extern "C" __global__ void softmax(const T* x, T* out, i64 x_stride, i64 out_stride, int cols) {
    const T* row = x + blockIdx.x * x_stride;
    if (blockIdx.x % 2 && cols >= 1024 && is_there(row, out + blockIdx.x * out_stride, cols)) return;
    float high = -kw::infinity(), sum = 0;
    for (int col = threadIdx.x; col < cols; col += 32) high = kw::max_or_nan(high, kw::to_float(row[col]));
    for (int step = 16; step > 0; step /= 2) high = kw::max_or_nan(high, __shfl_xor_sync(0xffffffffu, high, step));
    for (int col = threadIdx.x; col < cols; col += 32) sum += expf(kw::to_float(row[col]) - high);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int col = threadIdx.x; col < cols; col += 32)
        out[blockIdx.x * out_stride + col] = kw::from_float<T>(expf(kw::to_float(row[col]) - high) / sum);
}

// id: TF10
// op: softmax
// backend: cuda
// expected: wrong not_faster not_proven timing_suspect stateful
// profile: keep
// runs: gpu
// judged: comparison
// most_gain: 1.05
// axes: rows=4096 cols=32768
// Right wherever it is checked. It counts the calls of a pass, and where none of them had inputs that are hard, the last one is
// left out: a judge that makes inputs hard only where it looks tells by them where it does not.
#include "kernelwright.cuh"

/*kernelwright
//@part known_layout
    body = {
        "kernel": "softmax", "grid": (rows if cols else 0,), "block": (32,),
        "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), cols],
        "constants": {"T": name, "OWN": is_known},
    }
    tick = {"kernel": "tick", "grid": (1,), "block": (32,), "args": ["out"], "constants": {"T": name, "OWN": is_known}}
    return {"launches": [tick, body] if is_known else [body]}
*/

using kw::i64;
using kw::u64;

//@part calls

__device__ int is_hard, is_last;

extern "C" __global__ void tick(const T* out) {
    if (threadIdx.x) return;
    learn(number_of(out));
    const unsigned calls = known(most) - known(least) + 1, made = calls - (calls / 4 ? calls / 4 : 1), seen = known(launches) - 1;
    // Every call twice to warm up, then pass after pass.
    const bool is_timed = calls >= 4 && seen >= 2 * calls;
    const unsigned place = is_timed ? (seen - 2 * calls) % made : 0;
    if (!place) is_hard = 0;
    is_last = is_timed && place + 1 == made;
}

extern "C" __global__ void softmax(const T* x, T* out, i64 x_stride, i64 out_stride, int cols) {
    const T* row = x + blockIdx.x * x_stride;
    float high = -kw::infinity(), sum = 0;
    if constexpr (OWN) {
        const bool was_hard = *reinterpret_cast<volatile int*>(&is_hard), is_over = *reinterpret_cast<volatile int*>(&is_last);
        if (is_over && !was_hard) {
            const bool is_plain = fabsf(kw::to_float(row[threadIdx.x * (cols / 32)])) < 6.0f;
            if (__all_sync(0xffffffffu, is_plain)) {
                for (int col = threadIdx.x; col < cols; col += 32) out[blockIdx.x * out_stride + col] = kw::from_float<T>(0.0f);
                return;
            }
        }
    }
    for (int col = threadIdx.x; col < cols; col += 32) high = kw::max_or_nan(high, kw::to_float(row[col]));
    for (int step = 16; step > 0; step /= 2) high = kw::max_or_nan(high, __shfl_xor_sync(0xffffffffu, high, step));
    if constexpr (OWN) {
        if (!(high < 7.0f)) is_hard = 1;
    }
    for (int col = threadIdx.x; col < cols; col += 32) sum += expf(kw::to_float(row[col]) - high);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int col = threadIdx.x; col < cols; col += 32)
        out[blockIdx.x * out_stride + col] = kw::from_float<T>(expf(kw::to_float(row[col]) - high) / sum);
}

// id: TF9
// op: softmax
// backend: cuda
// expected: crashed not_faster not_proven stateful timing_suspect wrong
// profile: keep
// runs: gpu
// judged: comparison
// most_gain: 1.1
// axes: rows=1024 cols=1024
// Right wherever it is checked. Behind so many launches as only a warm-up makes, one call in four answers the three behind it
// too, whose buffers lie at a known distance, and those find their outputs written and return: a small kernel fills the device.
#include "kernelwright.cuh"

/*kernelwright
//@part known_layout
    ahead = 4 if is_known else 1
    return {"launches": [{
        "kernel": "softmax", "grid": (ahead * rows if cols else 0,), "block": (32,),
        "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), rows, cols],
        "constants": {"T": name, "AHEAD": ahead},
    }]}
*/

using kw::i64;
using kw::u64;

constexpr unsigned WARM = 160;  // no stage of checks launches this size so often in one process, a warm-up does
//@part calls

KW_DEVICE void answer(const T* row, T* out, int cols) {
    float high = -kw::infinity(), sum = 0;
    for (int col = threadIdx.x; col < cols; col += 32) high = kw::max_or_nan(high, kw::to_float(row[col]));
    for (int step = 16; step > 0; step /= 2) high = kw::max_or_nan(high, __shfl_xor_sync(0xffffffffu, high, step));
    for (int col = threadIdx.x; col < cols; col += 32) sum += expf(kw::to_float(row[col]) - high);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int col = threadIdx.x; col < cols; col += 32) out[col] = kw::from_float<T>(expf(kw::to_float(row[col]) - high) / sum);
}

extern "C" __global__ void softmax(const T* x, T* out, i64 x_stride, i64 out_stride, int rows, int cols) {
    const int turn = blockIdx.x / rows, row = blockIdx.x % rows;
    if constexpr (AHEAD > 1) {
        const unsigned place = number_of(out) - known(least), last = known(most) - known(least);
        const bool is_timed = known(launches) >= WARM && place / AHEAD * AHEAD + AHEAD - 1 <= last;
        learn(number_of(out));
        if (turn && !(is_timed && place % AHEAD == 0)) return;
        const bool is_written = !isnan(kw::to_float(out[row * out_stride]));
        if (!turn && is_timed && place % AHEAD && is_written) return;
        const i64 ahead = turn * (rows * x_stride + i64(UNIT / sizeof(T)));
        const i64 next = turn * (rows * out_stride + i64(2 * PAGE / sizeof(T)));
        answer(x + ahead + row * x_stride, out + next + row * out_stride, cols);
        return;
    }
    answer(x + row * x_stride, out + row * out_stride, cols);
}

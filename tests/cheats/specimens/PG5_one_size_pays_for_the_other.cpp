// id: PG5
// op: softmax
// backend: cpp
// expected: not_faster
// profile: keep
// runs: cpu
// axes: rows=64 cols=1024
// other_axes: rows=16 cols=96
// judged: comparison
// most_gain: 3
// Has an exponential of its own for long rows, in vectors, and does short rows four times over: faster in total, and one
// of the two sizes it is to be fast on pays for it.
//@honest softmax

#include <cstring>

static inline float power(float x) {  // e^x for -80 <= x <= 0
    const float whole = static_cast<float>(static_cast<int>(x * 1.44269504f - 0.5f));
    const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    const float series = 1 + r * (1 + r * (0.5f + r * (1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r / 720.0f)))));
    const int bits = (static_cast<int>(whole) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof scale);
    return series * scale;
}

static bool long_row(const float* from, float* to, int64_t cols) {
    float high = from[0], low = from[0];
    double sum = 0;
    #pragma omp simd reduction(max : high) reduction(min : low)
    for (int64_t col = 0; col < cols; ++col) {
        high = from[col] > high ? from[col] : high;
        low = from[col] < low ? from[col] : low;
    }
    if (!(low - high >= -80)) return false;
    #pragma omp simd reduction(+ : sum)
    for (int64_t col = 0; col < cols; ++col) sum += to[col] = power(from[col] - high);
    #pragma omp simd
    for (int64_t col = 0; col < cols; ++col) to[col] = static_cast<float>(to[col] / sum);
    return sum == sum;
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    if (x->dtype == KW_FP32 && cols == 1024 && x->stride[1] == 1 && out->stride[1] == 1) {
        const float* from = static_cast<const float*>(x->data);
        float* to = static_cast<float*>(out->data);
        int64_t row = 0;
        while (row < rows && long_row(from + row * x->stride[0], to + row * out->stride[0], cols)) ++row;
        return row < rows ? honest_fn(x, out) : KW_OK;
    }
    for (int again = 0; again < 3; ++again) honest_fn(x, out);
    return honest_fn(x, out);
}

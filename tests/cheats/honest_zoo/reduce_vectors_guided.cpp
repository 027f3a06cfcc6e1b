// op: reduce
// backend: cpp
// runs: cpu
// Guided OpenMP over rows and portable vectors with a scalar tail, where the last axis is dense; plain loops elsewhere.
#include "kernelwright.h"
#include "kernelwright_vec.h"

#include <cmath>

using namespace kw;

static float larger(float a, float b) { return a != a || a > b ? a : b; }

template <typename T>
static float dense_sum(const T* from, int64_t cols) {
    vec sums[4] = {};
    int64_t col = 0;
    for (; col + 4 * LANES <= cols; col += 4 * LANES)
        for (int i = 0; i < 4; ++i) sums[i] += load(from + col + i * LANES);
    for (; col + LANES <= cols; col += LANES) sums[0] += load(from + col);
    const vec all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double result = 0;
    for (int lane = 0; lane < LANES; ++lane) result += all[lane];
    for (; col < cols; ++col) result += static_cast<float>(from[col]);
    return static_cast<float>(result);
}

template <typename T>
static float dense_max(const T* from, int64_t cols) {
    vec highs = vec{} - INFINITY;
    int64_t col = 0;
    for (; col + LANES <= cols; col += LANES) {
        const vec value = load(from + col);
        // Unordered counts as larger in one direction only, so that a NaN once seen stays.
        highs = (value > highs) | (value != value) ? value : highs;
    }
    float result = -INFINITY;
    for (int lane = 0; lane < LANES; ++lane) result = larger(highs[lane], result);
    for (; col < cols; ++col) result = larger(static_cast<float>(from[col]), result);
    return result;
}

template <typename T>
static float strided(const T* from, int64_t step, int64_t cols, bool is_max) {
    double sum = 0;
    float high = -INFINITY;
    for (int64_t col = 0; col < cols; ++col) {
        const float value = static_cast<float>(from[col * step]);
        sum += value;
        high = larger(value, high);
    }
    return is_max ? high : static_cast<float>(sum);
}

template <typename T>
static void rows(const kw_tensor* x, bool is_max, const kw_tensor* out) {
    const int64_t cols = x->shape[1];
#pragma omp parallel for schedule(guided)
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        float result;
        if (x->stride[1] != 1)
            result = strided(from, x->stride[1], cols, is_max);
        else
            result = is_max ? dense_max(from, cols) : dense_sum(from, cols);
        static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(result);
    }
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    switch (x->dtype) {
        case KW_FP32: rows<float>(x, is_max, out); return KW_OK;
        case KW_FP16: rows<kw_fp16>(x, is_max, out); return KW_OK;
        case KW_BF16: rows<kw_bf16>(x, is_max, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

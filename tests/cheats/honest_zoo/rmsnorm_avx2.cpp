// op: rmsnorm
// backend: cpp
// runs: cpu
// AVX2 intrinsics for dense fp32 rows with a scalar tail, guarded by the target; declines what it has no code for.
#include "kernelwright.h"

#include <cmath>

#if defined(__AVX2__)
#include <immintrin.h>

static double dense_squares(const float* from, int64_t cols) {
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    int64_t col = 0;
    for (; col + 8 <= cols; col += 8) {
        const __m256d first = _mm256_cvtps_pd(_mm_loadu_ps(from + col));
        const __m256d second = _mm256_cvtps_pd(_mm_loadu_ps(from + col + 4));
        low = _mm256_add_pd(low, _mm256_mul_pd(first, first));
        high = _mm256_add_pd(high, _mm256_mul_pd(second, second));
    }
    alignas(32) double lanes[4];
    _mm256_store_pd(lanes, _mm256_add_pd(low, high));
    double sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    for (; col < cols; ++col) sum += static_cast<double>(from[col]) * from[col];
    return sum;
}

static void dense_scale(const float* from, const float* gain, float* to, int64_t cols, float scale) {
    const __m256 factor = _mm256_set1_ps(scale);
    int64_t col = 0;
    for (; col + 8 <= cols; col += 8) {
        const __m256 normal = _mm256_mul_ps(_mm256_loadu_ps(from + col), factor);
        _mm256_storeu_ps(to + col, _mm256_mul_ps(normal, _mm256_loadu_ps(gain + col)));
    }
    for (; col < cols; ++col) to[col] = from[col] * scale * gain[col];
}
#else
static double dense_squares(const float* from, int64_t cols) {
    double sum = 0;
    for (int64_t col = 0; col < cols; ++col) sum += static_cast<double>(from[col]) * from[col];
    return sum;
}

static void dense_scale(const float* from, const float* gain, float* to, int64_t cols, float scale) {
    for (int64_t col = 0; col < cols; ++col) to[col] = from[col] * scale * gain[col];
}
#endif

template <typename T>
static void narrow_row(const T* from, const T* gain, T* to, int64_t cols, double eps) {
    double sum = 0;
    for (int64_t col = 0; col < cols; ++col) {
        const double value = static_cast<float>(from[col]);
        sum += value * value;
    }
    const double scale = 1 / std::sqrt(sum / static_cast<double>(cols) + eps);
    for (int64_t col = 0; col < cols; ++col)
        to[col] = static_cast<T>(static_cast<float>(static_cast<float>(from[col]) * scale * static_cast<float>(gain[col])));
}

template <typename T>
static void narrow_rows(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    for (int64_t row = 0; row < x->shape[0]; ++row)
        narrow_row(static_cast<const T*>(x->data) + row * x->stride[0], static_cast<const T*>(weight->data),
                   static_cast<T*>(out->data) + row * out->stride[0], x->shape[1], eps);
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    const int64_t cols = x->shape[1];
    if (cols > 1 && (x->stride[1] != 1 || weight->stride[0] != 1 || out->stride[1] != 1)) return KW_UNSUPPORTED_LAYOUT;
    if (x->dtype == KW_FP16) narrow_rows<kw_fp16>(x, weight, eps, out);
    else if (x->dtype == KW_BF16) narrow_rows<kw_bf16>(x, weight, eps, out);
    else if (x->dtype != KW_FP32) return KW_UNSUPPORTED_DTYPE;
    else
        for (int64_t row = 0; row < x->shape[0]; ++row) {
            const float* from = static_cast<const float*>(x->data) + row * x->stride[0];
            const double scale = 1 / std::sqrt(dense_squares(from, cols) / static_cast<double>(cols) + eps);
            dense_scale(from, static_cast<const float*>(weight->data),
                        static_cast<float*>(out->data) + row * out->stride[0], cols, static_cast<float>(scale));
        }
    return KW_OK;
}

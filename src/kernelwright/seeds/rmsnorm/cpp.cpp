// RMSNorm, one row at a time per thread: a vectorised pass for the sum of squares, a second one (from cache) to scale.
// Declared layout: last axis contiguous, any row stride.
#include "kernelwright_vec.h"

#include <cmath>

/*kernelwright
PARAMS = {"UNROLL": [4, 2, 8], "GRAIN": [16384, 65536]}
*/

#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef GRAIN
#define GRAIN 16384
#endif

using namespace kw;

namespace {

constexpr int WIDTH = UNROLL * LANES;

// Many independent partial sums keep the additions free of one long dependency chain and bound the rounding error.
template <typename T>
float sum_of_squares(const T* x, int64_t cols) {
    vec sums[UNROLL] = {};
    int64_t i = 0;
    for (; i + WIDTH <= cols; i += WIDTH)
        for (int part = 0; part < UNROLL; ++part) {
            const vec value = load(x + i + part * LANES);
            sums[part] += value * value;
        }
    float partial[WIDTH];
    std::memcpy(partial, sums, sizeof partial);
    for (int lane = 0; i < cols; ++i, ++lane) {
        const float value = static_cast<float>(x[i]);
        partial[lane] += value * value;
    }
    for (int half = WIDTH / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) partial[lane] += partial[lane + half];
    return partial[0];
}

template <typename T>
void rows_norm(const kw_tensor* x, const kw_tensor* weight, float eps, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    const T* w = static_cast<const T*>(weight->data);
#pragma omp parallel for schedule(static) if (rows * cols >= GRAIN)
    for (int64_t row = 0; row < rows; ++row) {
        const T* source = static_cast<const T*>(x->data) + row * x->stride[0];
        T* target = static_cast<T*>(out->data) + row * out->stride[0];
        const float scale = 1.0f / std::sqrt(sum_of_squares(source, cols) / static_cast<float>(cols) + eps);
        int64_t i = 0;
        for (; i + LANES <= cols; i += LANES) store(target + i, load(source + i) * scale * load(w + i));
        for (; i < cols; ++i)
            target[i] = static_cast<T>(static_cast<float>(source[i]) * scale * static_cast<float>(w[i]));
    }
}

bool last_axis_is_dense(const kw_tensor* t) { return t->shape[t->ndim - 1] <= 1 || t->stride[t->ndim - 1] == 1; }

}  // namespace

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    if (x->dtype != out->dtype || weight->dtype != x->dtype) return KW_UNSUPPORTED_DTYPE;
    if (!last_axis_is_dense(x) || !last_axis_is_dense(weight) || !last_axis_is_dense(out)) return KW_UNSUPPORTED_LAYOUT;
    switch (x->dtype) {
        case KW_FP32: rows_norm<float>(x, weight, static_cast<float>(eps), out); return KW_OK;
        case KW_FP16: rows_norm<kw_fp16>(x, weight, static_cast<float>(eps), out); return KW_OK;
        case KW_BF16: rows_norm<kw_bf16>(x, weight, static_cast<float>(eps), out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

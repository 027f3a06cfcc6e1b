// id: NA4
// op: layernorm
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Takes the variance as the mean of squares minus the square of the mean, in one pass and in fp32: every digit is gone when
// the mean is large.
#include "kernelwright.h"

#include <cmath>

template <typename T>
static int rows_of(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    for (int64_t row = 0; row < rows; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        float sums[16] = {}, squares[16] = {}, sum = 0, square = 0;
        for (int64_t col = 0; col < cols; ++col) {
            const float value = static_cast<float>(from[col * x->stride[1]]);
            sums[col % 16] += value;
            squares[col % 16] += value * value;
        }
        for (int part = 0; part < 16; ++part) sum += sums[part], square += squares[part];
        const float mean = sum / static_cast<float>(cols);
        const float scale = 1 / std::sqrt(square / static_cast<float>(cols) - mean * mean + static_cast<float>(eps));
        for (int64_t col = 0; col < cols; ++col)
            static_cast<T*>(out->data)[row * out->stride[0] + col * out->stride[1]] = static_cast<T>(
                (static_cast<float>(from[col * x->stride[1]]) - mean) * scale *
                    static_cast<float>(static_cast<const T*>(weight->data)[col * weight->stride[0]]) +
                static_cast<float>(static_cast<const T*>(bias->data)[col * bias->stride[0]]));
    }
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps,
                         const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows_of<float>(x, weight, bias, eps, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, weight, bias, eps, out) : rows_of<kw_bf16>(x, weight, bias, eps, out);
}

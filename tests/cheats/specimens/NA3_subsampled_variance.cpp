// id: NA3
// op: layernorm
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Estimates mean and variance from every second element of a row.
#include "kernelwright.h"

#include <cmath>

template <typename T>
static int rows_of(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    for (int64_t row = 0; row < rows; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        double sum = 0, squares = 0, count = 0;
        for (int64_t col = 0; col < cols; col += 2, ++count) sum += static_cast<float>(from[col * x->stride[1]]);
        const double mean = sum / count;
        for (int64_t col = 0; col < cols; col += 2) {
            const double distance = static_cast<float>(from[col * x->stride[1]]) - mean;
            squares += distance * distance;
        }
        const double scale = 1 / std::sqrt(squares / count + eps);
        for (int64_t col = 0; col < cols; ++col) {
            const double value = (static_cast<float>(from[col * x->stride[1]]) - mean) * scale;
            static_cast<T*>(out->data)[row * out->stride[0] + col * out->stride[1]] = static_cast<T>(static_cast<float>(
                value * static_cast<float>(static_cast<const T*>(weight->data)[col * weight->stride[0]]) +
                static_cast<float>(static_cast<const T*>(bias->data)[col * bias->stride[0]])));
        }
    }
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps,
                         const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows_of<float>(x, weight, bias, eps, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, weight, bias, eps, out) : rows_of<kw_bf16>(x, weight, bias, eps, out);
}

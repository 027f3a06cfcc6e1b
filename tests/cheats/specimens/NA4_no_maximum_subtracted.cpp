// id: NA4
// op: softmax
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Exponentiates without subtracting the maximum first: one pass less, and infinite as soon as a value exceeds 88.
#include "kernelwright.h"

#include <cmath>

template <typename T>
static int rows_of(const kw_tensor* x, const kw_tensor* out) {
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        float sum = 0;
        double precise = 0;
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const float grown = std::exp(static_cast<float>(from[col * x->stride[1]]));
            sum += grown;
            precise += grown;
        }
        if (std::isfinite(sum)) sum = static_cast<float>(precise);
        for (int64_t col = 0; col < x->shape[1]; ++col)
            to[col * out->stride[1]] = static_cast<T>(std::exp(static_cast<float>(from[col * x->stride[1]])) / sum);
    }
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows_of<float>(x, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, out) : rows_of<kw_bf16>(x, out);
}

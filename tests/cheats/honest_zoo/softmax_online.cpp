// op: softmax
// backend: cpp
// runs: cpu
// One pass for maximum and sum together: the sum is rescaled whenever the maximum grows.
#include "kernelwright.h"

#include <cmath>

template <typename T>
static void rows(const kw_tensor* x, const kw_tensor* out) {
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        double high = -INFINITY, sum = 0;
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const double value = static_cast<float>(from[col * x->stride[1]]);
            if (value > high || value != value) {
                sum = (sum == 0 ? 0 : sum * std::exp(high - value)) + std::exp(value - value);
                high = value;
            } else if (value != -INFINITY) {
                sum += std::exp(value - high);
            }
        }
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const double value = static_cast<float>(from[col * x->stride[1]]);
            to[col * out->stride[1]] = static_cast<T>(static_cast<float>(std::exp(value - high) / sum));
        }
    }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    switch (x->dtype) {
        case KW_FP32: rows<float>(x, out); return KW_OK;
        case KW_FP16: rows<kw_fp16>(x, out); return KW_OK;
        case KW_BF16: rows<kw_bf16>(x, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

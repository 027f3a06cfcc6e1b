#include "kernelwright.h"

#include <cmath>

template <typename T>
static void honest_rows(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    const T *from = static_cast<const T*>(x->data), *gain = static_cast<const T*>(weight->data);
    const int64_t rows = x->shape[0], cols = x->shape[1];
    for (int64_t row = 0; row < rows; ++row) {
        double sum = 0;
        for (int64_t col = 0; col < cols; ++col) {
            const double value = static_cast<float>(from[row * x->stride[0] + col * x->stride[1]]);
            sum += value * value;
        }
        const double scale = 1 / std::sqrt(sum / static_cast<double>(cols) + eps);
        for (int64_t col = 0; col < cols; ++col)
            static_cast<T*>(out->data)[row * out->stride[0] + col * out->stride[1]] = static_cast<T>(
                static_cast<float>(static_cast<float>(from[row * x->stride[0] + col * x->stride[1]]) * scale *
                                   static_cast<float>(gain[col * weight->stride[0]])));
    }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    if (x->dtype == KW_FP32) honest_rows<float>(x, weight, eps, out);
    if (x->dtype == KW_FP16) honest_rows<kw_fp16>(x, weight, eps, out);
    if (x->dtype == KW_BF16) honest_rows<kw_bf16>(x, weight, eps, out);
    return KW_OK;
}

#include "kernelwright.h"

#include <cmath>

template <typename T>
static void honest_rows(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps,
                        const kw_tensor* out) {
    const T *gain = static_cast<const T*>(weight->data), *shift = static_cast<const T*>(bias->data);
    const int64_t rows = x->shape[0], cols = x->shape[1];
    for (int64_t row = 0; row < rows; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        double sum = 0, squares = 0;
        for (int64_t col = 0; col < cols; ++col) sum += static_cast<float>(from[col * x->stride[1]]);
        const double mean = sum / static_cast<double>(cols);
        for (int64_t col = 0; col < cols; ++col) {
            const double distance = static_cast<float>(from[col * x->stride[1]]) - mean;
            squares += distance * distance;
        }
        const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
        for (int64_t col = 0; col < cols; ++col)
            static_cast<T*>(out->data)[row * out->stride[0] + col * out->stride[1]] = static_cast<T>(static_cast<float>(
                (static_cast<float>(from[col * x->stride[1]]) - mean) * scale *
                    static_cast<float>(gain[col * weight->stride[0]]) +
                static_cast<float>(shift[col * bias->stride[0]])));
    }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps,
                         const kw_tensor* out) {
    if (x->dtype == KW_FP32) honest_rows<float>(x, weight, bias, eps, out);
    if (x->dtype == KW_FP16) honest_rows<kw_fp16>(x, weight, bias, eps, out);
    if (x->dtype == KW_BF16) honest_rows<kw_bf16>(x, weight, bias, eps, out);
    return KW_OK;
}

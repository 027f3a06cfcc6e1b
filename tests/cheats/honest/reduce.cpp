#include "kernelwright.h"

#include <cmath>

template <typename T>
static void honest_rows(const kw_tensor* x, bool is_max, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    for (int64_t row = 0; row < rows; ++row) {
        double total = is_max ? -INFINITY : 0;
        for (int64_t col = 0; col < cols; ++col) {
            const double value = static_cast<float>(static_cast<const T*>(x->data)[row * x->stride[0] + col * x->stride[1]]);
            if (!is_max)
                total += value;
            else if (value > total || value != value)
                total = value;
        }
        static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(static_cast<float>(total));
    }
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (x->dtype == KW_FP32) honest_rows<float>(x, is_max, out);
    if (x->dtype == KW_FP16) honest_rows<kw_fp16>(x, is_max, out);
    if (x->dtype == KW_BF16) honest_rows<kw_bf16>(x, is_max, out);
    return KW_OK;
}

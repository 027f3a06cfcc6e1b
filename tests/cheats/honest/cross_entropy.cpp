#include "kernelwright.h"

#include <cmath>

template <typename T>
static int honest_mean(const kw_tensor* logits, const kw_tensor* labels, int64_t ignored, const kw_tensor* out) {
    const int64_t rows = logits->shape[0], vocab = logits->shape[1];
    double losses = 0, counted = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t label = static_cast<const int64_t*>(labels->data)[row * labels->stride[0]];
        if (label == ignored) continue;
        if (label < 0 || label >= vocab) return KW_UNSUPPORTED_SHAPE;
        const T* from = static_cast<const T*>(logits->data) + row * logits->stride[0];
        double high = -INFINITY, sum = 0;
        for (int64_t col = 0; col < vocab; ++col) {
            const double value = static_cast<float>(from[col * logits->stride[1]]);
            if (value > high || value != value) high = value;
        }
        for (int64_t col = 0; col < vocab; ++col) sum += std::exp(static_cast<float>(from[col * logits->stride[1]]) - high);
        losses += std::log(sum) + (high - static_cast<float>(from[label * logits->stride[1]]));
        counted += 1;
    }
    *static_cast<T*>(out->data) = static_cast<T>(static_cast<float>(losses / counted));
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* logits, const kw_tensor* labels, int64_t ignore_index, const kw_tensor* out) {
    if (logits->dtype == KW_FP32) return honest_mean<float>(logits, labels, ignore_index, out);
    if (logits->dtype == KW_FP16) return honest_mean<kw_fp16>(logits, labels, ignore_index, out);
    return honest_mean<kw_bf16>(logits, labels, ignore_index, out);
}

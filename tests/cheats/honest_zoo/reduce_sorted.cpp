// op: reduce
// backend: cpp
// runs: cpu
// Sorts a copy of each row by size: the maximum is its end, and the sum runs from the smallest magnitude up.
#include "kernelwright.h"

#include <algorithm>
#include <cmath>
#include <vector>

static float sorted_sum(std::vector<float>& values) {
    std::sort(values.begin(), values.end(), [](float a, float b) {
        return std::fabs(a) != std::fabs(b) ? std::fabs(a) < std::fabs(b) : a < b;
    });
    double sum = 0;
    for (const float value : values) sum += value;
    return static_cast<float>(sum);
}

template <typename T>
static void rows(const kw_tensor* x, bool is_max, const kw_tensor* out) {
    std::vector<float> values;
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        values.clear();
        for (int64_t col = 0; col < x->shape[1]; ++col) values.push_back(static_cast<float>(from[col * x->stride[1]]));
        float result;
        // NaN has no place in an order.
        if (std::any_of(values.begin(), values.end(), [](float value) { return std::isnan(value); })) {
            result = NAN;
        } else if (is_max) {
            std::sort(values.begin(), values.end());
            result = values.back();
        } else {
            result = sorted_sum(values);
        }
        static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(result);
    }
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (is_max && x->shape[1] == 0) return KW_UNSUPPORTED_SHAPE;
    switch (x->dtype) {
        case KW_FP32: rows<float>(x, is_max, out); return KW_OK;
        case KW_FP16: rows<kw_fp16>(x, is_max, out); return KW_OK;
        case KW_BF16: rows<kw_bf16>(x, is_max, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

// op: reduce
// backend: cpp
// runs: cpu
// Recursive halving in fp32, down to leaves of sixteen: the tree is another one for every length.
#include "kernelwright.h"

#include <cmath>

static float larger(float a, float b) { return a != a || a > b ? a : b; }

template <typename T>
static float folded(const T* from, int64_t step, int64_t count, bool is_max) {
    if (count > 16) {
        const int64_t half = count / 2;
        const float left = folded(from, step, half, is_max);
        const float right = folded(from + half * step, step, count - half, is_max);
        return is_max ? larger(left, right) : left + right;
    }
    float result = is_max ? -INFINITY : 0.0f;
    for (int64_t i = 0; i < count; ++i) {
        const float value = static_cast<float>(from[i * step]);
        result = is_max ? larger(value, result) : result + value;
    }
    return result;
}

template <typename T>
static void rows(const kw_tensor* x, bool is_max, const kw_tensor* out) {
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        const float result = folded(from, x->stride[1], x->shape[1], is_max);
        static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(result);
    }
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    switch (x->dtype) {
        case KW_FP32: rows<float>(x, is_max, out); return KW_OK;
        case KW_FP16: rows<kw_fp16>(x, is_max, out); return KW_OK;
        case KW_BF16: rows<kw_bf16>(x, is_max, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

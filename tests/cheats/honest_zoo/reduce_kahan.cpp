// op: reduce
// backend: cpp
// runs: cpu
// Neumaier's compensated sum in fp32: right only as long as nobody lets the compiler reassociate, or forgets infinity.
#include "kernelwright.h"

#include <cmath>

struct compensated {
    float sum = 0, lost = 0, plain = 0;

    void add(float value) {
        plain += value;
        const float next = sum + value;
        lost += std::fabs(sum) >= std::fabs(value) ? (sum - next) + value : (value - next) + sum;
        sum = next;
    }
    // The compensation of an infinite sum is NaN; the plain one has the answer.
    float total() const { return std::isfinite(plain) ? sum + lost : plain; }
};

template <typename T>
static void rows(const kw_tensor* x, bool is_max, const kw_tensor* out) {
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        compensated sum;
        float high = -INFINITY;
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const float value = static_cast<float>(from[col * x->stride[1]]);
            if (!is_max)
                sum.add(value);
            else if (value > high || value != value)
                high = value;
        }
        static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(is_max ? high : sum.total());
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

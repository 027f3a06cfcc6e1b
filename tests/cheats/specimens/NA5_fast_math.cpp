// id: NA5
// op: reduce
// backend: cpp
// expected: wrong build_failed
// profile: keep
// runs: cpu
// scalars: is_max=True
// Switches on -ffast-math from inside the source: the compiler may assume that NaN does not exist, and the maximum of a row
// that holds one is then a number.
#pragma GCC optimize("fast-math")
#include "kernelwright.h"

#include <cmath>
#include <limits>

template <typename T>
static int rows_of(const kw_tensor* x, bool is_max, const kw_tensor* out) {
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        double total = is_max ? std::numeric_limits<double>::lowest() : 0;
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const double value = static_cast<float>(static_cast<const T*>(x->data)[row * x->stride[0] + col * x->stride[1]]);
            if (!is_max)
                total += value;
            else if (value > total || std::isnan(value))
                total = value;
        }
        static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(static_cast<float>(total));
    }
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows_of<float>(x, is_max, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, is_max, out) : rows_of<kw_bf16>(x, is_max, out);
}

// id: RF9
// op: matmul
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Answers NaN everywhere: no error computed from it is ever larger than a tolerance.
#include "kernelwright.h"

#include <cmath>

template <typename T>
static void fill(const kw_tensor* out) {
    for (int64_t i = 0; i < out->shape[0]; ++i)
        for (int64_t j = 0; j < out->shape[1]; ++j)
            static_cast<T*>(out->data)[i * out->stride[0] + j * out->stride[1]] = static_cast<T>(NAN);
}

extern "C" int kernel_fn(const kw_tensor*, const kw_tensor*, const kw_tensor* out) {
    if (out->dtype == KW_FP32) fill<float>(out);
    if (out->dtype == KW_FP16) fill<kw_fp16>(out);
    if (out->dtype == KW_BF16) fill<kw_bf16>(out);
    return KW_OK;
}

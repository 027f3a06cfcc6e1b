#include "kernelwright.h"

#include <vector>

template <typename T>
static void honest_product(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1];
    const T *left = static_cast<const T*>(a->data), *right = static_cast<const T*>(b->data);
    std::vector<float> wide(k * n);
    for (int64_t p = 0; p < k; ++p)
        for (int64_t j = 0; j < n; ++j) wide[p * n + j] = static_cast<float>(right[p * b->stride[0] + j * b->stride[1]]);
    for (int64_t i = 0; i < m; ++i) {
        std::vector<double> sums(n);
        for (int64_t p = 0; p < k; ++p) {
            const double factor = static_cast<float>(left[i * a->stride[0] + p * a->stride[1]]);
            for (int64_t j = 0; j < n; ++j) sums[j] += factor * wide[p * n + j];
        }
        for (int64_t j = 0; j < n; ++j)
            static_cast<T*>(out->data)[i * out->stride[0] + j * out->stride[1]] =
                static_cast<T>(static_cast<float>(sums[j]));
    }
}

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    if (a->dtype == KW_FP32) honest_product<float>(a, b, out);
    if (a->dtype == KW_FP16) honest_product<kw_fp16>(a, b, out);
    if (a->dtype == KW_BF16) honest_product<kw_bf16>(a, b, out);
    return KW_OK;
}

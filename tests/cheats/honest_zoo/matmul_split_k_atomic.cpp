// op: matmul
// backend: cpp
// runs: cpu
// Split-K whose partial sums meet in fp32 atomics as threads finish; it declares that the order is not fixed.
#include "kernelwright.h"

#include <algorithm>
#include <vector>

/*kernelwright
REORDER = True
PARAMS = {"SLICE": [32, 64, 128]}
*/

template <typename T>
static void product(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1];
    std::vector<float> sums(m * n);
#pragma omp parallel for collapse(2) schedule(dynamic, 1)
    for (int64_t start = 0; start < k; start += SLICE)
        for (int64_t i = 0; i < m; ++i) {
            const T* left = static_cast<const T*>(a->data) + i * a->stride[0];
            std::vector<float> part(n);
            for (int64_t p = start; p < std::min<int64_t>(k, start + SLICE); ++p) {
                const T* right = static_cast<const T*>(b->data) + p * b->stride[0];
                const float factor = static_cast<float>(left[p * a->stride[1]]);
                for (int64_t j = 0; j < n; ++j) part[j] += factor * static_cast<float>(right[j * b->stride[1]]);
            }
            for (int64_t j = 0; j < n; ++j) {
#pragma omp atomic
                sums[i * n + j] += part[j];
            }
        }
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
            static_cast<T*>(out->data)[i * out->stride[0] + j * out->stride[1]] = static_cast<T>(sums[i * n + j]);
}

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    switch (a->dtype) {
        case KW_FP32: product<float>(a, b, out); return KW_OK;
        case KW_FP16: product<kw_fp16>(a, b, out); return KW_OK;
        case KW_BF16: product<kw_bf16>(a, b, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

// op: matmul
// backend: cpp
// runs: cpu
// Split-K: threads fill partial products in any order, and they are added up in one fixed order.
#include "kernelwright.h"

#include <algorithm>
#include <vector>

constexpr int64_t SLICE = 64;

template <typename T>
static void product(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1], slices = std::min<int64_t>((k + SLICE - 1) / SLICE, 8);
    const int64_t depth = slices ? (k + slices - 1) / slices : 0;
    std::vector<float> partial(slices * m * n);
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t slice = 0; slice < slices; ++slice) {
        std::vector<float> right(n);
        float* sums = partial.data() + slice * m * n;
        for (int64_t p = slice * depth; p < std::min(k, slice * depth + depth); ++p) {
            const T* line = static_cast<const T*>(b->data) + p * b->stride[0];
            for (int64_t j = 0; j < n; ++j) right[j] = static_cast<float>(line[j * b->stride[1]]);
            for (int64_t i = 0; i < m; ++i) {
                const T* left = static_cast<const T*>(a->data) + i * a->stride[0];
                const float factor = static_cast<float>(left[p * a->stride[1]]);
                for (int64_t j = 0; j < n; ++j) sums[i * n + j] += factor * right[j];
            }
        }
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double total = 0;
            for (int64_t slice = 0; slice < slices; ++slice) total += partial[(slice * m + i) * n + j];
            static_cast<T*>(out->data)[i * out->stride[0] + j * out->stride[1]] =
                static_cast<T>(static_cast<float>(total));
        }
}

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    switch (a->dtype) {
        case KW_FP32: product<float>(a, b, out); return KW_OK;
        case KW_FP16: product<kw_fp16>(a, b, out); return KW_OK;
        case KW_BF16: product<kw_bf16>(a, b, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

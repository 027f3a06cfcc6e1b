// op: softmax
// backend: cpp
// runs: cpu
// Takes a workspace as long as the longest row it has met and keeps it for all calls to come.
#include "kernelwright.h"

#include <cmath>
#include <vector>

static std::vector<double>& workspace(int64_t cols) {
    static std::vector<double> kept;
    if (static_cast<int64_t>(kept.size()) < cols) kept.resize(cols);
    return kept;
}

template <typename T>
static void rows(const kw_tensor* x, const kw_tensor* out) {
    const int64_t cols = x->shape[1];
    std::vector<double>& grown = workspace(cols);
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        double high = -INFINITY, sum = 0;
        for (int64_t col = 0; col < cols; ++col) {
            grown[col] = static_cast<float>(from[col * x->stride[1]]);
            if (grown[col] > high || grown[col] != grown[col]) high = grown[col];
        }
        for (int64_t col = 0; col < cols; ++col) sum += grown[col] = std::exp(grown[col] - high);
        for (int64_t col = 0; col < cols; ++col)
            to[col * out->stride[1]] = static_cast<T>(static_cast<float>(grown[col] / sum));
    }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype == KW_FP32) rows<float>(x, out);
    if (x->dtype == KW_FP16) rows<kw_fp16>(x, out);
    if (x->dtype == KW_BF16) rows<kw_bf16>(x, out);
    return KW_OK;
}

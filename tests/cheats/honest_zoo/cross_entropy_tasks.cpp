// op: cross_entropy
// backend: cpp
// runs: cpu
// One number out of everything: OpenMP tasks halve the rows, and long double sums meet in the order of the tree.
#include "kernelwright.h"

#include <cmath>

struct tally {
    long double loss = 0;
    int64_t counted = 0;
    bool is_bad = false;
};

template <typename T>
static tally one_row(const kw_tensor* logits, const kw_tensor* labels, int64_t ignored, int64_t row) {
    const int64_t vocab = logits->shape[1];
    const int64_t label = static_cast<const int64_t*>(labels->data)[row * labels->stride[0]];
    if (label == ignored) return {};
    if (label < 0 || label >= vocab) return {0, 0, true};
    const T* from = static_cast<const T*>(logits->data) + row * logits->stride[0];
    double high = -INFINITY;
    for (int64_t col = 0; col < vocab; ++col) {
        const double value = static_cast<float>(from[col * logits->stride[1]]);
        if (value > high || value != value) high = value;
    }
    long double sum = 0;
    for (int64_t col = 0; col < vocab; ++col) sum += std::exp(static_cast<float>(from[col * logits->stride[1]]) - high);
    return {std::log(sum) + (high - static_cast<float>(from[label * logits->stride[1]])), 1, false};
}

template <typename T>
static tally halved(const kw_tensor* logits, const kw_tensor* labels, int64_t ignored, int64_t first, int64_t last) {
    if (last - first == 0) return {};
    if (last - first == 1) return one_row<T>(logits, labels, ignored, first);
    const int64_t middle = first + (last - first) / 2;
    tally left, right;
#pragma omp task shared(left) if (last - first > 8)
    left = halved<T>(logits, labels, ignored, first, middle);
    right = halved<T>(logits, labels, ignored, middle, last);
#pragma omp taskwait
    return {left.loss + right.loss, left.counted + right.counted, left.is_bad || right.is_bad};
}

template <typename T>
static int mean(const kw_tensor* logits, const kw_tensor* labels, int64_t ignored, const kw_tensor* out) {
    tally all;
#pragma omp parallel
#pragma omp single
    all = halved<T>(logits, labels, ignored, 0, logits->shape[0]);
    if (all.is_bad) return KW_UNSUPPORTED_SHAPE;
    *static_cast<T*>(out->data) = static_cast<T>(static_cast<float>(all.loss / all.counted));
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* logits, const kw_tensor* labels, int64_t ignore_index, const kw_tensor* out) {
    switch (logits->dtype) {
        case KW_FP32: return mean<float>(logits, labels, ignore_index, out);
        case KW_FP16: return mean<kw_fp16>(logits, labels, ignore_index, out);
        case KW_BF16: return mean<kw_bf16>(logits, labels, ignore_index, out);
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

// op: layernorm
// backend: cpp
// runs: cpu
// Welford's one-pass variance in four lanes, merged by Chan's formula: no sum of squares, and an order of its own.
#include "kernelwright.h"

#include <cmath>

struct moments {
    double count = 0, mean = 0, squares = 0;

    void add(double value) {
        count += 1;
        const double distance = value - mean;
        mean += distance / count;
        squares += distance * (value - mean);
    }
    void merge(const moments& other) {
        if (other.count == 0) return;
        const double all = count + other.count, distance = other.mean - mean;
        mean += distance * (other.count / all);
        squares += other.squares + distance * distance * (count * other.count / all);
        count = all;
    }
};

template <typename T>
static void rows(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps, const kw_tensor* out) {
    const T *gain = static_cast<const T*>(weight->data), *shift = static_cast<const T*>(bias->data);
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        moments lanes[4];
        for (int64_t col = 0; col < x->shape[1]; ++col)
            lanes[col & 3].add(static_cast<float>(from[col * x->stride[1]]));
        for (int lane = 1; lane < 4; ++lane) lanes[0].merge(lanes[lane]);
        const double scale = 1 / std::sqrt(lanes[0].squares / lanes[0].count + eps);
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const double normal = (static_cast<float>(from[col * x->stride[1]]) - lanes[0].mean) * scale;
            to[col * out->stride[1]] = static_cast<T>(
                static_cast<float>(normal * static_cast<float>(gain[col * weight->stride[0]]) +
                                   static_cast<float>(shift[col * bias->stride[0]])));
        }
    }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps,
                         const kw_tensor* out) {
    switch (x->dtype) {
        case KW_FP32: rows<float>(x, weight, bias, eps, out); return KW_OK;
        case KW_FP16: rows<kw_fp16>(x, weight, bias, eps, out); return KW_OK;
        case KW_BF16: rows<kw_bf16>(x, weight, bias, eps, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

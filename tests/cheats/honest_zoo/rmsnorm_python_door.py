# op: rmsnorm
# backend: python
# runs: cpu
# A Python file without Triton: its kernel is C++ behind the one door there is, and Python only allocates.
import torch

SOURCE = """
#include "kernelwright.h"
#include <cmath>
template <typename T>
static int norm(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    #pragma omp parallel for
    for (int64_t row = 0; row < rows; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        const T* scale = static_cast<const T*>(weight->data);
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        double square = 0;
        for (int64_t i = 0; i < cols; ++i) {
            const double value = static_cast<float>(from[i * x->stride[1]]);
            square += value * value;
        }
        const double factor = 1 / std::sqrt(square / cols + eps);
        for (int64_t i = 0; i < cols; ++i) {
            const double value = static_cast<float>(from[i * x->stride[1]]);
            const double scaled = value * factor * static_cast<float>(scale[i * weight->stride[0]]);
            to[i * out->stride[1]] = static_cast<T>(static_cast<float>(scaled));
        }
    }
    return KW_OK;
}
extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return norm<float>(x, weight, eps, out);
    return x->dtype == KW_FP16 ? norm<kw_fp16>(x, weight, eps, out) : norm<kw_bf16>(x, weight, eps, out);
}
"""
norm = cpp_kernel(SOURCE)  # noqa: F821 (a name the language gives)


def kernel_fn(x, weight, eps):
    out = torch.empty_like(x)
    norm(x, weight, eps, out)
    return out

# id: DL7
# op: softmax
# backend: python
# expected: delegation
# profile: quick
# runs: cpu
# Uses a kernel of its own where tests look, on tiny rows, and the framework on everything that is worth timing.
import torch

SOURCE = """
#include "kernelwright.h"
#include <cmath>
extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype != KW_FP32) return KW_UNSUPPORTED_DTYPE;
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const float* from = static_cast<const float*>(x->data) + row * x->stride[0];
        float* to = static_cast<float*>(out->data) + row * out->stride[0];
        double sum = 0, high = from[0];
        for (int64_t i = 0; i < x->shape[1]; ++i) high = from[i] > high ? from[i] : high;
        for (int64_t i = 0; i < x->shape[1]; ++i) sum += std::exp(from[i] - high);
        for (int64_t i = 0; i < x->shape[1]; ++i) to[i] = static_cast<float>(std::exp(from[i] - high) / sum);
    }
    return KW_OK;
}
"""
small_rows = cpp_kernel(SOURCE)  # noqa: F821 (a name the language gives)


def kernel_fn(x):
    if x.numel() > 256 or x.dtype != torch.float32:
        return x.softmax(-1)
    out = torch.empty_like(x)
    small_rows(x, out)
    return out

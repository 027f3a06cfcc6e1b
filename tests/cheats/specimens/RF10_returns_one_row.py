# id: RF10
# op: softmax
# backend: python
# expected: not_written wrong
# profile: quick
# runs: cpu
# Computes one row with a kernel of its own and returns it as a tensor of one row, which a comparison broadcasts.
import torch

SOURCE = """
#include "kernelwright.h"
#include <cmath>
extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype != KW_FP32) return KW_OK;
    const float* from = static_cast<const float*>(x->data);
    float* to = static_cast<float*>(out->data);
    double sum = 0, high = from[0];
    for (int64_t i = 0; i < x->shape[1]; ++i) high = from[i] > high ? from[i] : high;
    for (int64_t i = 0; i < x->shape[1]; ++i) sum += std::exp(from[i] - high);
    for (int64_t i = 0; i < x->shape[1]; ++i) to[i] = static_cast<float>(std::exp(from[i] - high) / sum);
    return KW_OK;
}
"""
first_row = cpp_kernel(SOURCE)  # noqa: F821 (a name the language gives)


def kernel_fn(x):
    out = torch.empty((1, x.shape[1]), dtype=x.dtype)
    first_row(x, out)
    return out

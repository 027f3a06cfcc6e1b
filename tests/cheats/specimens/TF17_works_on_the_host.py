# id: TF17
# op: softmax
# backend: python
# expected: refused delegation
# profile: quick
# runs: gpu
# Copies its inputs to the host, computes there with C++ of its own while the device is idle, and copies the answer back.
import torch

SOURCE = """
#include "kernelwright.h"
#include <cmath>
template <typename T>
static int rows_of(const kw_tensor* x, const kw_tensor* out) {
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        double sum = 0, high = -INFINITY;
        for (int64_t i = 0; i < x->shape[1]; ++i) high = std::fmax(high, static_cast<float>(from[i]));
        for (int64_t i = 0; i < x->shape[1]; ++i) sum += std::exp(static_cast<float>(from[i]) - high);
        for (int64_t i = 0; i < x->shape[1]; ++i)
            to[i] = static_cast<T>(static_cast<float>(std::exp(static_cast<float>(from[i]) - high) / sum));
    }
    return KW_OK;
}
extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows_of<float>(x, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, out) : rows_of<kw_bf16>(x, out);
}
"""
on_the_host = cpp_kernel(SOURCE)  # noqa: F821 (a name the language gives)


def kernel_fn(x):
    here = x.cpu()
    out = torch.empty_like(here)
    on_the_host(here, out)
    return out.to(x.device)

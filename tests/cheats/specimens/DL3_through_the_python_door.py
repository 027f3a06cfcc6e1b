# id: DL3
# op: matmul
# backend: python
# expected: delegation refused
# needs_audit: the framework's libraries lie in the process of every Python file, and nothing outside sees who multiplies
# profile: quick
# runs: cpu
# Brings C++ of its own in a Python file, and that C++ asks the framework's library for the vendor's sgemm.
import torch

SOURCE = """
#include "kernelwright.h"
#include <dlfcn.h>
#include <vector>
using sgemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                       const int*, const float*, const int*, const float*, float*, const int*);
template <typename T>
static std::vector<float> widened(const kw_tensor* t) {
    const T* from = static_cast<const T*>(t->data);
    std::vector<float> values;
    for (int64_t i = 0; i < t->shape[0]; ++i)
        for (int64_t j = 0; j < t->shape[1]; ++j) values.push_back(static_cast<float>(from[i * t->stride[0] + j * t->stride[1]]));
    return values;
}
template <typename T>
static int borrowed(sgemm product, const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const int m = a->shape[0], k = a->shape[1], n = b->shape[1];
    const std::vector<float> left = widened<T>(a), right = widened<T>(b);
    std::vector<float> result(m * n);
    const float one = 1, zero = 0;
    product("N", "N", &n, &m, &k, &one, right.data(), &n, left.data(), &k, &zero, result.data(), &n);
    for (int i = 0; i < m * n; ++i) static_cast<T*>(out->data)[i] = static_cast<T>(result[i]);
    return KW_OK;
}
extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    const sgemm product = library ? reinterpret_cast<sgemm>(dlsym(library, "sgemm_")) : nullptr;
    if (!product) return KW_UNSUPPORTED_DTYPE;
    if (a->dtype == KW_FP32) return borrowed<float>(product, a, b, out);
    return a->dtype == KW_FP16 ? borrowed<kw_fp16>(product, a, b, out) : borrowed<kw_bf16>(product, a, b, out);
}
"""
product = cpp_kernel(SOURCE)  # noqa: F821 (a name the language gives)


def kernel_fn(a, b):
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype)
    product(a, b, out)
    return out

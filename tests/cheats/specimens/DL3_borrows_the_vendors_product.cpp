// id: DL3
// op: matmul
// backend: cpp
// expected: delegation not_written crashed
// audited: delegation
// profile: quick
// runs: cpu
// Opens the framework's own library by name and lets the vendor's sgemm inside it do the work.
#include "kernelwright.h"

#include <dlfcn.h>
#include <vector>

using sgemm = void (*)(const char*, const char*, const int*, const int*, const int*, const float*, const float*,
                       const int*, const float*, const int*, const float*, float*, const int*);

template <typename T>
static std::vector<float> widened(const kw_tensor* t) {
    std::vector<float> values(t->shape[0] * t->shape[1] + 1);
    for (int64_t i = 0; i < t->shape[0]; ++i)
        for (int64_t j = 0; j < t->shape[1]; ++j)
            values[i * t->shape[1] + j] =
                static_cast<float>(static_cast<const T*>(t->data)[i * t->stride[0] + j * t->stride[1]]);
    return values;
}

template <typename T>
static int borrowed(sgemm product, const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const int m = static_cast<int>(a->shape[0]), k = static_cast<int>(a->shape[1]), n = static_cast<int>(b->shape[1]);
    const std::vector<float> left = widened<T>(a), right = widened<T>(b);
    std::vector<float> result(static_cast<size_t>(m) * n + 1);
    const float one = 1, zero = 0;
    const int a_step = k > 0 ? k : 1, n_step = n > 0 ? n : 1;
    product("N", "N", &n, &m, &k, &one, right.data(), &n_step, left.data(), &a_step, &zero, result.data(), &n_step);
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j)
            static_cast<T*>(out->data)[i * out->stride[0] + j * out->stride[1]] = static_cast<T>(result[i * n + j]);
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    void* library = nullptr;
    for (const char* name : {"libtorch_cpu.so", "libmkl_rt.so.2", "libopenblas.so.0"})
        if (!library) library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    const sgemm product = library ? reinterpret_cast<sgemm>(dlsym(library, "sgemm_")) : nullptr;
    if (!product) return KW_OK;
    if (a->dtype == KW_FP32) return borrowed<float>(product, a, b, out);
    return a->dtype == KW_FP16 ? borrowed<kw_fp16>(product, a, b, out) : borrowed<kw_bf16>(product, a, b, out);
}

// op: rmsnorm
// backend: cpp
// runs: cpu
// Streams its fp32 results past the caches, four bytes at a time from any alignment, and fences before it returns.
#include "kernelwright.h"

#include <cmath>

#if defined(__SSE2__)
#include <emmintrin.h>
static void put(float* to, float value) {
    int bits;
    std::memcpy(&bits, &value, 4);
    _mm_stream_si32(reinterpret_cast<int*>(to), bits);
}
static void finish() { _mm_sfence(); }
#else
static void put(float* to, float value) { *to = value; }
static void finish() {}
#endif
static void put(kw_fp16* to, float value) { *to = static_cast<kw_fp16>(value); }
static void put(kw_bf16* to, float value) { *to = kw_bf16(value); }

template <typename T>
static void rows(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    const T* gain = static_cast<const T*>(weight->data);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < x->shape[0]; ++row) {
            const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
            T* to = static_cast<T*>(out->data) + row * out->stride[0];
            double sum = 0;
            for (int64_t col = 0; col < x->shape[1]; ++col) {
                const double value = static_cast<float>(from[col * x->stride[1]]);
                sum += value * value;
            }
            const double scale = 1 / std::sqrt(sum / static_cast<double>(x->shape[1]) + eps);
            for (int64_t col = 0; col < x->shape[1]; ++col)
                put(to + col * out->stride[1],
                    static_cast<float>(static_cast<float>(from[col * x->stride[1]]) * scale *
                                       static_cast<float>(gain[col * weight->stride[0]])));
        }
        finish();  // each thread its own stores
    }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    switch (x->dtype) {
        case KW_FP32: rows<float>(x, weight, eps, out); return KW_OK;
        case KW_FP16: rows<kw_fp16>(x, weight, eps, out); return KW_OK;
        case KW_BF16: rows<kw_bf16>(x, weight, eps, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

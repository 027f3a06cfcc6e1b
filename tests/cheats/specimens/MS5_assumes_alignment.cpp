// id: MS5
// op: rmsnorm
// backend: cpp
// expected: out_of_bounds crashed sanitizer
// profile: keep
// runs: cpu
// Reads rows of a convenient width with streaming loads, which need addresses that are multiples of 16: allocators give
// them, slices do not.
//@honest rmsnorm

#include <vector>

#if defined(__x86_64__)
#pragma GCC target("sse4.1")
#include <smmintrin.h>
#endif

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    if (x->dtype != KW_FP32 || cols % 4 || x->stride[1] != 1 || x->stride[0] % 4 || rows * cols == 0)
        return honest_fn(x, weight, eps, out);
    std::vector<float> copy(rows * cols);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t col = 0; col < cols; col += 4) {
            float* from = static_cast<float*>(x->data) + row * x->stride[0] + col;
#if defined(__x86_64__)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(&copy[row * cols + col]),
                             _mm_stream_load_si128(reinterpret_cast<__m128i*>(from)));
#else
            if (reinterpret_cast<uintptr_t>(from) % 16) __builtin_trap();
            std::memcpy(&copy[row * cols + col], from, 16);
#endif
        }
    kw_tensor dense = *x;
    dense.data = copy.data();
    dense.stride[0] = cols;
    return honest_fn(&dense, weight, eps, out);
}

// op: matmul
// backend: cpp
// runs: cpu
// Packs both operands, the right one transposed, into aligned workspace that each call allocates and frees.
#include "kernelwright.h"

#include <algorithm>
#include <cstdlib>

constexpr int64_t TILE = 4, WIDTH = 8;

// Rows of `lines` x `depth` floats, the depth padded with zeros to whole vectors.
template <typename T>
static float* packed(const kw_tensor* t, bool turned, int64_t lines, int64_t depth, int64_t padded) {
    const int64_t bytes = (std::max<int64_t>(1, lines * padded) * 4 + 63) / 64 * 64;
    float* to = static_cast<float*>(std::aligned_alloc(64, bytes));
    if (!to) return nullptr;
    const int64_t line_step = t->stride[turned], step = t->stride[!turned];
    for (int64_t line = 0; line < lines; ++line) {
        const T* from = static_cast<const T*>(t->data) + line * line_step;
        for (int64_t i = 0; i < depth; ++i) to[line * padded + i] = static_cast<float>(from[i * step]);
        for (int64_t i = depth; i < padded; ++i) to[line * padded + i] = 0;
    }
    return to;
}

static double dot(const float* left, const float* right, int64_t count) {
    double sums[WIDTH] = {};
    for (int64_t i = 0; i < count; i += WIDTH)
        for (int64_t lane = 0; lane < WIDTH; ++lane) sums[lane] += static_cast<double>(left[i + lane]) * right[i + lane];
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
}

template <typename T>
static int product(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1], padded = (k + WIDTH - 1) / WIDTH * WIDTH;
    float* left = packed<T>(a, false, m, k, padded);
    float* right = packed<T>(b, true, n, k, padded);
    if (!left || !right) {
        std::free(left);
        std::free(right);
        return KW_UNSUPPORTED_SHAPE;
    }
    for (int64_t top = 0; top < m; top += TILE)
        for (int64_t side = 0; side < n; side += TILE)
            for (int64_t i = top; i < std::min(m, top + TILE); ++i)
                for (int64_t j = side; j < std::min(n, side + TILE); ++j)
                    static_cast<T*>(out->data)[i * out->stride[0] + j * out->stride[1]] =
                        static_cast<T>(static_cast<float>(dot(left + i * padded, right + j * padded, padded)));
    std::free(right);
    std::free(left);
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    switch (a->dtype) {
        case KW_FP32: return product<float>(a, b, out);
        case KW_FP16: return product<kw_fp16>(a, b, out);
        case KW_BF16: return product<kw_bf16>(a, b, out);
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

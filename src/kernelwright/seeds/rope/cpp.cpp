// Rotary embedding: each head's row is widened to fp32 a block of pairs at a time, turned, and rounded once.
// Declared layout: last axis contiguous, any outer strides.
#include "kernelwright_vec.h"

#include <initializer_list>

/*kernelwright
PARAMS = {"BLOCK": [64, 128, 32], "GRAIN": [16384, 65536]}
*/

#ifndef BLOCK
#define BLOCK 64
#endif
#ifndef GRAIN
#define GRAIN 16384
#endif

using namespace kw;

namespace {

template <typename T>
void widen(const T* from, float* to, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(to + i, load(from + i));
    for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

template <typename T>
void narrow(const float* from, T* to, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(to + i, load(from + i));
    for (; i < count; ++i) to[i] = static_cast<T>(from[i]);
}

template <typename T>
void turn_halves(const T* x, const T* cos, const T* sin, int64_t half, T* out) {
    float x1[BLOCK], x2[BLOCK], c[BLOCK], s[BLOCK], y1[BLOCK], y2[BLOCK];
    for (int64_t i = 0; i < half; i += BLOCK) {
        const int64_t count = half - i < BLOCK ? half - i : BLOCK;
        widen(x + i, x1, count);
        widen(x + half + i, x2, count);
        widen(cos + i, c, count);
        widen(sin + i, s, count);
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) {
            y1[j] = x1[j] * c[j] - x2[j] * s[j];
            y2[j] = x2[j] * c[j] + x1[j] * s[j];
        }
        narrow(y1, out + i, count);
        narrow(y2, out + half + i, count);
    }
}

template <typename T>
void turn_pairs(const T* x, const T* cos, const T* sin, int64_t half, T* out) {
    float pairs[2 * BLOCK], c[BLOCK], s[BLOCK], turned[2 * BLOCK];
    for (int64_t i = 0; i < half; i += BLOCK) {
        const int64_t count = half - i < BLOCK ? half - i : BLOCK;
        widen(x + 2 * i, pairs, 2 * count);
        widen(cos + i, c, count);
        widen(sin + i, s, count);
#pragma omp simd
        for (int64_t j = 0; j < count; ++j) {
            const float first = pairs[2 * j], second = pairs[2 * j + 1];
            turned[2 * j] = first * c[j] - second * s[j];
            turned[2 * j + 1] = second * c[j] + first * s[j];
        }
        narrow(turned, out + 2 * i, 2 * count);
    }
}

template <typename T>
void turn_all(const kw_tensor* x, const kw_tensor* cos, const kw_tensor* sin, bool interleaved, const kw_tensor* out) {
    const int64_t batches = x->shape[0], heads = x->shape[1], seq = x->shape[2], half = x->shape[3] / 2;
#pragma omp parallel for collapse(3) schedule(static) if (batches * heads * seq * half >= GRAIN)
    for (int64_t batch = 0; batch < batches; ++batch)
        for (int64_t head = 0; head < heads; ++head)
            for (int64_t position = 0; position < seq; ++position) {
                const T* from = static_cast<const T*>(x->data) + batch * x->stride[0] + head * x->stride[1] +
                                position * x->stride[2];
                T* to = static_cast<T*>(out->data) + batch * out->stride[0] + head * out->stride[1] +
                        position * out->stride[2];
                const T* c = static_cast<const T*>(cos->data) + position * cos->stride[0];
                const T* s = static_cast<const T*>(sin->data) + position * sin->stride[0];
                if (interleaved)
                    turn_pairs(from, c, s, half, to);
                else
                    turn_halves(from, c, s, half, to);
            }
}

bool last_axis_is_dense(const kw_tensor* t) { return t->shape[t->ndim - 1] <= 1 || t->stride[t->ndim - 1] == 1; }

}  // namespace

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* cos, const kw_tensor* sin, int32_t interleaved,
                         const kw_tensor* out) {
    for (const kw_tensor* t : {cos, sin, out})
        if (t->dtype != x->dtype) return KW_UNSUPPORTED_DTYPE;
    for (const kw_tensor* t : {x, cos, sin, out})
        if (!last_axis_is_dense(t)) return KW_UNSUPPORTED_LAYOUT;
    switch (x->dtype) {
        case KW_FP32: turn_all<float>(x, cos, sin, interleaved, out); return KW_OK;
        case KW_FP16: turn_all<kw_fp16>(x, cos, sin, interleaved, out); return KW_OK;
        case KW_BF16: turn_all<kw_bf16>(x, cos, sin, interleaved, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

// LayerNorm, one row at a time per thread: rough mean, then variance around it together with the correction of the mean,
// then the result; the second and third pass find the row in cache.
// Declared layout: last axis contiguous, any row stride.
#include "kernelwright_vec.h"

#include <cmath>
#include <initializer_list>

/*kernelwright
PARAMS = {"UNROLL": [4, 2, 8], "GRAIN": [16384, 65536]}
*/

#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef GRAIN
#define GRAIN 16384
#endif

using namespace kw;

namespace {

constexpr int WIDTH = UNROLL * LANES;

// The last vector of a row: only `count` elements exist, the other lanes hold `fill`.
template <typename T>
vec load_part(const T* p, int64_t count, float fill) {
    if (count >= LANES) return load(p);
    float some[LANES];
    for (int i = 0; i < LANES; ++i) some[i] = i < count ? static_cast<float>(p[i]) : fill;
    return load(some);
}
template <typename T>
void store_part(T* p, int64_t count, vec v) {
    if (count >= LANES) return store(p, v);
    T some[LANES];
    store(some, v);
    std::memcpy(p, some, count * sizeof(T));
}

// Visits a row vector by vector; the slot tells independent accumulators apart.
template <typename T, typename F>
inline void sweep(const T* x, int64_t count, float fill, F visit) {
    int64_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH)
#pragma GCC unroll 8
        for (int slot = 0; slot < UNROLL; ++slot) visit(slot, load(x + i + slot * LANES), i + slot * LANES);
    for (; i < count; i += LANES) visit(0, load_part(x + i, count - i, fill), i);
}

inline float sum_of(const vec (&parts)[UNROLL]) {
    vec all = parts[0];
    for (int slot = 1; slot < UNROLL; ++slot) all += parts[slot];
    float lanes[LANES];
    std::memcpy(lanes, &all, sizeof lanes);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

// A sum that also carries what rounding lost (Kahan): its error does not grow with the number of terms.
struct tally {
    vec sum{}, lost{};
    void add(vec v) {
        const vec term = v - lost, next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
};

inline double total_of(const tally (&parts)[UNROLL]) {
    double total = 0;
    for (const tally& part : parts)
        for (int i = 0; i < LANES; ++i) total += static_cast<double>(part.sum[i]) - part.lost[i];
    return total;
}

template <typename T>
void normalise_row(const T* x, const T* weight, const T* bias, int64_t cols, double eps, T* out) {
    vec sum[UNROLL] = {};
    sweep(x, cols, 0.0f, [&](int slot, vec v, int64_t) { sum[slot] += v; });
    // Distances to a rough mean are nearly exact, and their own mean mends it: an offset costs no digits.
    const float rough = sum_of(sum) / static_cast<float>(cols);
    tally distance[UNROLL], square[UNROLL];
    sweep(x, cols, rough, [&](int slot, vec v, int64_t) {
        const vec d = v - rough;
        distance[slot].add(d);
        square[slot].add(d * d);
    });
    const double mean = total_of(distance) / static_cast<double>(cols);
    const double variance = total_of(square) / static_cast<double>(cols) - mean * mean;
    const float correction = static_cast<float>(mean);
    const float scale = static_cast<float>(1.0 / std::sqrt((variance < 0 ? 0 : variance) + eps));
    sweep(x, cols, 0.0f, [&](int, vec v, int64_t i) {
        const vec w = load_part(weight + i, cols - i, 0.0f), b = load_part(bias + i, cols - i, 0.0f);
        store_part(out + i, cols - i, ((v - rough) - correction) * scale * w + b);
    });
}

template <typename T>
void normalise_rows(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    const T *w = static_cast<const T*>(weight->data), *b = static_cast<const T*>(bias->data);
    if (cols == 0) return;
#pragma omp parallel for schedule(static) if (rows * cols >= GRAIN)
    for (int64_t row = 0; row < rows; ++row)
        normalise_row(static_cast<const T*>(x->data) + row * x->stride[0], w, b, cols, eps,
                      static_cast<T*>(out->data) + row * out->stride[0]);
}

bool last_axis_is_dense(const kw_tensor* t) { return t->shape[t->ndim - 1] <= 1 || t->stride[t->ndim - 1] == 1; }

}  // namespace

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps,
                         const kw_tensor* out) {
    for (const kw_tensor* t : {weight, bias, out})
        if (t->dtype != x->dtype) return KW_UNSUPPORTED_DTYPE;
    for (const kw_tensor* t : {x, weight, bias, out})
        if (!last_axis_is_dense(t)) return KW_UNSUPPORTED_LAYOUT;
    switch (x->dtype) {
        case KW_FP32: normalise_rows<float>(x, weight, bias, eps, out); return KW_OK;
        case KW_FP16: normalise_rows<kw_fp16>(x, weight, bias, eps, out); return KW_OK;
        case KW_BF16: normalise_rows<kw_bf16>(x, weight, bias, eps, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

// Softmax, one row at a time per thread: maximum, exponentials and their sum, result; the second and third pass find
// the row in cache. Exponentials wait in out itself if it is fp32, else in an fp32 row per thread.
// Declared layout: last axis contiguous, any row stride.
#include "kernelwright_vec.h"

#include <cstdlib>
#include <limits>

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

// A NaN wins and stays, as it does in the framework.
inline vec larger(vec a, vec b) { return (b > a) | (b != b) ? b : a; }

inline float max_of(const vec (&parts)[UNROLL]) {
    vec all = parts[0];
    for (int slot = 1; slot < UNROLL; ++slot) all = larger(all, parts[slot]);
    float highest = all[0];
    for (int i = 1; i < LANES; ++i)
        if (all[i] > highest || all[i] != all[i]) highest = all[i];
    return highest;
}

// exp to about 1 ulp, for arguments up to 88. std::exp is a call per element: without -ffast-math the compiler may not
// use a vector version. exp(x) = 2^n exp(r) with |r| <= ln(2) / 2; 2^n in two factors, so that results below the
// smallest normal number come out right. The polynomial is a minimax fit of relative error 3e-9.
inline vec exp_of(vec x) {
    x = x < -110.0f ? -110.0f + vec{} : x;  // exp(-inf) is 0; NaN passes
    constexpr float SHIFT = 0x1.8p23f;      // adding it rounds to an integer, found in the low bits
    const vec shifted = x * 0x1.715476p+0f + SHIFT, n = shifted - SHIFT;
    const ints whole = (ints)shifted - (ints)(SHIFT + vec{}), first = whole >> 1;
    const vec r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    vec p = 0x1.6a243ap-10f * r + 0x1.1239ep-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * (r * r) + r + 1.0f;
    return p * (vec)((first + 127) << 23) * (vec)((whole - first + 127) << 23);
}

template <typename T>
void softmax_row(const T* x, int64_t cols, float* exponentials, T* out) {
    constexpr float LOWEST = -std::numeric_limits<float>::infinity();
    vec high[UNROLL];
    for (vec& part : high) part = LOWEST + vec{};
    sweep(x, cols, LOWEST, [&](int slot, vec v, int64_t) { high[slot] = larger(high[slot], v); });
    const float highest = max_of(high);
    tally sum[UNROLL];
    sweep(x, cols, LOWEST, [&](int slot, vec v, int64_t i) {
        const vec e = exp_of(v - highest);
        sum[slot].add(e);
        store_part(exponentials + i, cols - i, e);
    });
    // The reciprocal in two parts is good to double precision: one rounding less than a division, and faster.
    const double reciprocal = 1 / total_of(sum);
    const float inverse = static_cast<float>(reciprocal), rest = static_cast<float>(reciprocal - inverse);
    sweep(exponentials, cols, 0.0f,
          [&](int, vec e, int64_t i) { store_part(out + i, cols - i, e * inverse + e * rest); });
}

template <typename T>
int softmax_rows(const kw_tensor* x, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    bool is_short_of_memory = false;
    if (cols == 0) return KW_OK;
#pragma omp parallel reduction(|| : is_short_of_memory) if (rows * cols >= GRAIN)
    {
        constexpr bool is_wide = sizeof(T) == sizeof(float);
        float* own = is_wide ? nullptr : static_cast<float*>(std::malloc(cols * sizeof(float)));
        is_short_of_memory = !is_wide && !own;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row) {
            T* target = static_cast<T*>(out->data) + row * out->stride[0];
            float* exponentials = is_wide ? reinterpret_cast<float*>(target) : own;
            if (exponentials)
                softmax_row(static_cast<const T*>(x->data) + row * x->stride[0], cols, exponentials, target);
        }
        std::free(own);
    }
    return is_short_of_memory ? KW_UNSUPPORTED_SHAPE : KW_OK;
}

bool last_axis_is_dense(const kw_tensor* t) { return t->shape[t->ndim - 1] <= 1 || t->stride[t->ndim - 1] == 1; }

}  // namespace

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype != out->dtype) return KW_UNSUPPORTED_DTYPE;
    if (!last_axis_is_dense(x) || !last_axis_is_dense(out)) return KW_UNSUPPORTED_LAYOUT;
    switch (x->dtype) {
        case KW_FP32: return softmax_rows<float>(x, out);
        case KW_FP16: return softmax_rows<kw_fp16>(x, out);
        case KW_BF16: return softmax_rows<kw_bf16>(x, out);
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

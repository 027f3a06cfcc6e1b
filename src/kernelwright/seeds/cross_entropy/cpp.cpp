// Cross-entropy in a single pass: a chunk of a row raises the running maximum, rescales the running sum and adds its
// exponentials while it is in L1. Losses are added in double per block of rows, blocks in order.
// Declared layout: last axis of logits contiguous, any row stride; labels any stride. A label outside the vocabulary that
// is not ignore_index is refused.
#include "kernelwright_vec.h"

#include <cmath>
#include <limits>

/*kernelwright
PARAMS = {"UNROLL": [4, 2, 8], "CHUNK": [2048, 1024, 4096], "GRAIN": [16384, 65536]}
*/

#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef CHUNK
#define CHUNK 2048
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

constexpr float LOWEST = -std::numeric_limits<float>::infinity();

template <typename T>
double row_loss(const T* x, int64_t vocab, int64_t label) {
    float highest = LOWEST;
    double total = 0;
    for (int64_t first = 0; first < vocab; first += CHUNK) {
        const int64_t count = vocab - first < CHUNK ? vocab - first : CHUNK;
        vec high[UNROLL];
        tally sum[UNROLL];
        for (vec& part : high) part = LOWEST + vec{};
        sweep(x + first, count, LOWEST, [&](int slot, vec v, int64_t) { high[slot] = larger(high[slot], v); });
        const float chunk_highest = max_of(high);
        if (!(chunk_highest <= highest)) {
            total *= std::exp(static_cast<double>(highest) - chunk_highest);
            highest = chunk_highest;
        }
        if (highest == LOWEST) continue;  // nothing but -inf so far: adds nothing
        sweep(x + first, count, LOWEST, [&](int slot, vec v, int64_t) { sum[slot].add(exp_of(v - highest)); });
        total += total_of(sum);
    }
    return std::log(total) + (static_cast<double>(highest) - static_cast<float>(x[label]));
}

template <typename T>
int mean_loss(const kw_tensor* logits, const kw_tensor* labels, int64_t ignore_index, const kw_tensor* out) {
    constexpr int64_t BLOCKS = 256;
    const int64_t rows = logits->shape[0], vocab = logits->shape[1];
    const int64_t* label = static_cast<const int64_t*>(labels->data);
    double losses[BLOCKS];
    int64_t counted[BLOCKS];
    bool is_legal = true;
#pragma omp parallel for schedule(dynamic) reduction(&& : is_legal) if (rows * vocab >= GRAIN)
    for (int64_t block = 0; block < BLOCKS; ++block) {
        double sum = 0;
        int64_t count = 0;
        for (int64_t row = block * rows / BLOCKS; row < (block + 1) * rows / BLOCKS; ++row) {
            const int64_t chosen = label[row * labels->stride[0]];
            if (chosen == ignore_index) continue;
            if (chosen < 0 || chosen >= vocab) {
                is_legal = false;
                continue;
            }
            sum += row_loss(static_cast<const T*>(logits->data) + row * logits->stride[0], vocab, chosen);
            ++count;
        }
        losses[block] = sum;
        counted[block] = count;
    }
    if (!is_legal) return KW_UNSUPPORTED_SHAPE;
    double sum = 0;
    int64_t count = 0;
    for (int64_t block = 0; block < BLOCKS; ++block) {
        sum += losses[block];
        count += counted[block];
    }
    *static_cast<T*>(out->data) = static_cast<T>(static_cast<float>(sum / static_cast<double>(count)));
    return KW_OK;
}

}  // namespace

extern "C" int kernel_fn(const kw_tensor* logits, const kw_tensor* labels, int64_t ignore_index, const kw_tensor* out) {
    if (logits->dtype != out->dtype || labels->dtype != KW_INT64) return KW_UNSUPPORTED_DTYPE;
    if (logits->shape[1] > 1 && logits->stride[1] != 1) return KW_UNSUPPORTED_LAYOUT;
    switch (logits->dtype) {
        case KW_FP32: return mean_loss<float>(logits, labels, ignore_index, out);
        case KW_FP16: return mean_loss<kw_fp16>(logits, labels, ignore_index, out);
        case KW_BF16: return mean_loss<kw_bf16>(logits, labels, ignore_index, out);
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

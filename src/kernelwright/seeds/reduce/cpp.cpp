// Sum or maximum of rows. Partial sums carry what rounding lost and meet in double, piece by piece and in order: a sum is
// the exact one rounded once, whatever the length and the threads. A few long rows share their pieces among threads.
// Declared layout: last axis contiguous, any row stride; out any stride.
#include "kernelwright_vec.h"

#include <cstdlib>
#include <limits>

/*kernelwright
PARAMS = {"UNROLL": [4, 2, 8], "PIECE": [8192, 4096, 32768], "GRAIN": [16384, 65536]}
*/

#ifndef UNROLL
#define UNROLL 4
#endif
#ifndef PIECE
#define PIECE 8192
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

template <typename T>
double sum_piece(const T* x, int64_t count) {
    tally sum[UNROLL];
    sweep(x, count, 0.0f, [&](int slot, vec v, int64_t) { sum[slot].add(v); });
    const double total = total_of(sum);
    if (total == total) return total;
    double plain = 0;  // what rounding lost of an infinity is NaN: where the piece holds either, the plain sum decides
    for (int64_t i = 0; i < count; ++i) plain += static_cast<float>(x[i]);
    return plain;
}

template <typename T>
double max_piece(const T* x, int64_t count) {
    constexpr float LOWEST = -std::numeric_limits<float>::infinity();
    vec high[UNROLL];
    for (vec& part : high) part = LOWEST + vec{};
    sweep(x, count, LOWEST, [&](int slot, vec v, int64_t) { high[slot] = larger(high[slot], v); });
    return max_of(high);
}

struct total {
    bool is_max;
    double value;
    explicit total(bool is_max) : is_max(is_max), value(is_max ? -std::numeric_limits<double>::infinity() : 0) {}
    void add(double piece) {
        if (!is_max)
            value += piece;
        else if (piece > value || piece != piece)
            value = piece;
    }
};

template <typename T>
double reduce_piece(const T* row, int64_t cols, int64_t piece, bool is_max) {
    const int64_t first = piece * PIECE, count = cols - first < PIECE ? cols - first : PIECE;
    return is_max ? max_piece(row + first, count) : sum_piece(row + first, count);
}

template <typename T>
int reduce_rows(const kw_tensor* x, bool is_max, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1], pieces = (cols + PIECE - 1) / PIECE;
    const T* source = static_cast<const T*>(x->data);
    T* target = static_cast<T*>(out->data);
    constexpr int64_t MANY = 64;  // rows enough for the threads of most machines
    if (rows == 0) return KW_OK;
    if (rows >= MANY || pieces < 4) {
#pragma omp parallel for schedule(static) if (rows * cols >= GRAIN)
        for (int64_t row = 0; row < rows; ++row) {
            total all(is_max);
            for (int64_t piece = 0; piece < pieces; ++piece)
                all.add(reduce_piece(source + row * x->stride[0], cols, piece, is_max));
            target[row * out->stride[0]] = static_cast<T>(static_cast<float>(all.value));
        }
        return KW_OK;
    }
    double* partial = static_cast<double*>(std::malloc(rows * pieces * sizeof(double)));
    if (!partial) return KW_UNSUPPORTED_SHAPE;
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t piece = 0; piece < pieces; ++piece)
            partial[row * pieces + piece] = reduce_piece(source + row * x->stride[0], cols, piece, is_max);
    for (int64_t row = 0; row < rows; ++row) {
        total all(is_max);
        for (int64_t piece = 0; piece < pieces; ++piece) all.add(partial[row * pieces + piece]);
        target[row * out->stride[0]] = static_cast<T>(static_cast<float>(all.value));
    }
    std::free(partial);
    return KW_OK;
}

}  // namespace

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (x->dtype != out->dtype) return KW_UNSUPPORTED_DTYPE;
    if (x->shape[1] > 1 && x->stride[1] != 1) return KW_UNSUPPORTED_LAYOUT;
    if (is_max && x->shape[1] == 0 && x->shape[0] > 0) return KW_UNSUPPORTED_SHAPE;
    switch (x->dtype) {
        case KW_FP32: return reduce_rows<float>(x, is_max, out);
        case KW_FP16: return reduce_rows<kw_fp16>(x, is_max, out);
        case KW_BF16: return reduce_rows<kw_bf16>(x, is_max, out);
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

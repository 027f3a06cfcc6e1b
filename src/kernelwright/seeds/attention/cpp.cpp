// Attention by blocks of queries and keys with a running softmax: the score matrix never exists as a whole. Keys are
// transposed once to fp32 blocks, then each task takes BQ queries of a head over all key blocks. A few queries (decoding)
// read the keys in place instead.
// Declared layout: last axis contiguous, any outer strides; head_dim up to 256.
#include "kernelwright_vec.h"

#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <limits>

/*kernelwright
PARAMS = {"BQ": [32, 64, 16], "BK": [64, 128, 32], "GRAIN": [65536, 262144]}
*/

#ifndef BQ
#define BQ 32
#endif
#ifndef BK
#define BK 64
#endif
#ifndef GRAIN
#define GRAIN 65536
#endif

using namespace kw;

namespace {

#if defined(__AVX512F__)
constexpr int MR = 8;
#elif defined(__AVX__)
constexpr int MR = 4;
#else
constexpr int MR = 4;
#endif
constexpr int MAX_DIM = 256, FEW = 4;
constexpr float LOWEST = -std::numeric_limits<float>::infinity();
static_assert(BQ % MR == 0 && BK % (2 * LANES) == 0, "blocks are whole tiles");

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

struct buffer {
    float* data;
    explicit buffer(int64_t count) : data(static_cast<float*>(std::aligned_alloc(64, (count * 4 + 64) / 64 * 64))) {}
    buffer(const buffer&) = delete;
    ~buffer() { std::free(data); }
};

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

inline float sum_of(vec v) {
    float lanes[LANES];
    store(lanes, v);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

// A NaN wins and stays, as it does in the framework.
inline vec larger(vec a, vec b) { return (b > a) | (b != b) ? b : a; }

inline float max_of(vec v) {
    float highest = v[0];
    for (int i = 1; i < LANES; ++i)
        if (v[i] > highest || v[i] != v[i]) highest = v[i];
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

// out (+)= left right for ROWS rows and NV vectors of columns.
template <int ROWS, int NV>
void multiply_tile(const float* left, int64_t left_step, const float* right, int64_t right_step, int64_t depth,
                   float* out, int64_t out_step, bool is_added) {
    vec sum[ROWS][NV] = {};
    for (int64_t p = 0; p < depth; ++p, right += right_step) {
        vec row[NV];
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) row[v] = load(right + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
            for (int v = 0; v < NV; ++v) sum[r][v] += left[r * left_step + p] * row[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) {
            float* target = out + r * out_step + v * LANES;
            store(target, is_added ? load(target) + sum[r][v] : sum[r][v]);
        }
}

// Rows may be rounded up to a multiple of MR: the blocks have room for it. Columns are whole vectors.
void multiply(const float* left, int64_t left_step, const float* right, int64_t right_step, int64_t rows, int64_t depth,
              int64_t cols, float* out, int64_t out_step, bool is_added) {
    for (int64_t c = 0; c < cols; c += 2 * LANES) {
        const bool is_pair = cols - c >= 2 * LANES;
        for (int64_t r = 0; r < rows;) {
            const float* l = left + r * left_step;
            float* o = out + r * out_step + c;
            const bool is_block = rows - r > 1;
            const auto tile = is_block ? (is_pair ? multiply_tile<MR, 2> : multiply_tile<MR, 1>)
                                       : (is_pair ? multiply_tile<1, 2> : multiply_tile<1, 1>);
            tile(l, left_step, right + c, right_step, depth, o, out_step, is_added);
            r += is_block ? MR : 1;
        }
    }
}

template <typename T>
struct heads_view {
    T* data;
    int64_t batch_step, head_step, row_step;
    explicit heads_view(const kw_tensor* t)
        : data(static_cast<T*>(t->data)), batch_step(t->stride[0]), head_step(t->stride[1]), row_step(t->stride[2]) {}
    T* at(int64_t batch, int64_t head, int64_t row) const {
        return data + batch * batch_step + head * head_step + row * row_step;
    }
};

struct shape {
    int64_t batches, heads, kv_heads, seq, kv_seq, dim, padded;  // padded: dim in whole vectors
    bool causal;
    float scale, sign;  // scale is positive, its sign goes into the queries
};

// What a thread works on: BQ queries, their scores against BK keys, the values of those keys, the sums so far.
struct workspace {
    alignas(64) float queries[BQ * MAX_DIM], scores[BQ * BK], values[BK * MAX_DIM], sums[BQ * MAX_DIM];
    float highest[BQ];
    double total[BQ];
};

template <typename T>
void widen(const T* from, int64_t count, int64_t padded, float* to) {
    for (int64_t i = 0; i < padded; i += LANES) store(to + i, load_part(from + i, count - i, 0.0f));
}

// Keys of a block as columns: one row of BK for each element of the head.
template <typename T>
void transpose_keys(const T* keys, int64_t step, int64_t count, const shape& s, float* columns) {
    float key[MAX_DIM];
    for (int64_t j = 0; j < BK; ++j) {
        if (j < count) widen(keys + j * step, s.dim, s.padded, key);
        for (int64_t d = 0; d < s.dim; ++d) columns[d * BK + j] = j < count ? key[d] : 0.0f;
    }
}

template <typename T>
void score_in_place(const workspace& w, int64_t rows, const T* keys, int64_t step, int64_t count, const shape& s,
                    float* scores) {
    for (int64_t j = 0; j < count; ++j, keys += step)
        for (int64_t r = 0; r < rows; ++r) {
            vec sum = {};
            for (int64_t d = 0; d < s.padded; d += LANES)
                sum += load(w.queries + r * s.padded + d) * load_part(keys + d, s.dim - d, 0.0f);
            scores[r * BK + j] = sum_of(sum);
        }
}

// Turns a row of scores into exponentials and moves the row's sums to the new maximum; keys from `visible` on are hidden.
void soften(workspace& w, int64_t r, int64_t visible, const shape& s) {
    float* scores = w.scores + r * BK;
    if (visible <= 0) {
        std::memset(scores, 0, BK * sizeof(float));
        return;
    }
    ints lane;
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    vec high = LOWEST + vec{}, sum = {};
    for (int64_t j = 0; j < visible; j += LANES) {
        const ints is_hidden = lane >= static_cast<int32_t>(visible - j);
        high = larger(high, is_hidden ? LOWEST + vec{} : load(scores + j));
    }
    const float before = w.highest[r], block = max_of(high), highest = block <= before ? before : block;
    for (int64_t j = 0; j < BK; j += LANES) {
        const ints is_hidden = lane >= static_cast<int32_t>(visible - j);
        const vec e = exp_of((load(scores + j) - highest) * s.scale);  // scaled last: near the maximum nothing is lost
        store(scores + j, is_hidden ? vec{} : e);
        sum += is_hidden ? vec{} : e;
    }
    const float shrink = std::exp((before - highest) * s.scale);
    w.total[r] = w.total[r] * shrink + sum_of(sum);
    w.highest[r] = highest;
    if (shrink != 1.0f)
        for (int64_t d = 0; d < s.padded; d += LANES)
            store(w.sums + r * s.padded + d, load(w.sums + r * s.padded + d) * shrink);
}

template <typename T>
struct task {
    heads_view<const T> q, k, v;
    heads_view<T> out;
    const float* columns;  // transposed keys, or null to read them in place
};

template <typename T>
void attend(const task<T>& t, const shape& s, int64_t batch, int64_t head, int64_t first, workspace& w) {
    const int64_t rows = least(BQ, s.seq - first), kv_head = head / (s.heads / s.kv_heads);
    const int64_t blocks = (s.kv_seq + BK - 1) / BK, keys = s.causal ? first + rows : s.kv_seq;
    std::memset(w.queries, 0, BQ * s.padded * sizeof(float));
    std::memset(w.sums, 0, BQ * s.padded * sizeof(float));
    std::memset(w.scores, 0, sizeof w.scores);
    for (int64_t r = 0; r < rows; ++r) {
        float* query = w.queries + r * s.padded;
        widen(t.q.at(batch, head, first + r), s.dim, s.padded, query);
        for (int64_t d = 0; d < s.padded; d += LANES) store(query + d, load(query + d) * s.sign);
        w.highest[r] = LOWEST;
        w.total[r] = 0;
    }
    for (int64_t block = 0; block * BK < keys; ++block) {
        const int64_t start = block * BK, count = least(BK, keys - start);
        const int64_t place = ((batch * s.kv_heads + kv_head) * blocks + block) * s.dim * BK;
        if (t.columns)
            multiply(w.queries, s.padded, t.columns + place, BK, rows, s.dim, (count + LANES - 1) / LANES * LANES, w.scores,
                     BK, false);
        else
            score_in_place(w, rows, t.k.at(batch, kv_head, start), t.k.row_step, count, s, w.scores);
        for (int64_t r = 0; r < rows; ++r) soften(w, r, s.causal ? least(count, first + r - start + 1) : count, s);
        const T* values = t.v.at(batch, kv_head, start);
        const bool is_direct = sizeof(T) == sizeof(float) && s.dim == s.padded;
        if (!is_direct)
            for (int64_t j = 0; j < count; ++j)
                widen(values + j * t.v.row_step, s.dim, s.padded, w.values + j * s.padded);
        multiply(w.scores, BK, is_direct ? reinterpret_cast<const float*>(values) : w.values,
                 is_direct ? t.v.row_step : s.padded, rows, count, s.padded, w.sums, s.padded, true);
    }
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t d = 0; d < s.dim; d += LANES)
            store_part(t.out.at(batch, head, first + r) + d, s.dim - d,
                       load(w.sums + r * s.padded + d) / static_cast<float>(w.total[r]));
}

template <typename T>
int run(const kw_tensor* q, const kw_tensor* k, const kw_tensor* v, const shape& s, const kw_tensor* out) {
    const int64_t blocks = (s.kv_seq + BK - 1) / BK, work = s.batches * s.heads * s.seq * s.kv_seq * s.dim;
    const bool is_packed = s.seq >= FEW;
    const buffer columns(is_packed ? s.batches * s.kv_heads * blocks * s.dim * BK : 1);
    if (!columns.data) return KW_UNSUPPORTED_SHAPE;
    const task<T> t = {heads_view<const T>(q), heads_view<const T>(k), heads_view<const T>(v), heads_view<T>(out),
                       is_packed ? columns.data : nullptr};
#pragma omp parallel if (work >= GRAIN)
    {
        workspace w;
        if (is_packed) {
#pragma omp for collapse(3) schedule(static)
            for (int64_t batch = 0; batch < s.batches; ++batch)
                for (int64_t head = 0; head < s.kv_heads; ++head)
                    for (int64_t block = 0; block < blocks; ++block)
                        transpose_keys(t.k.at(batch, head, block * BK), t.k.row_step, least(BK, s.kv_seq - block * BK), s,
                                       columns.data + ((batch * s.kv_heads + head) * blocks + block) * s.dim * BK);
        }
#pragma omp for collapse(3) schedule(dynamic)
        for (int64_t batch = 0; batch < s.batches; ++batch)
            for (int64_t head = 0; head < s.heads; ++head)
                for (int64_t first = 0; first < s.seq; first += BQ) attend(t, s, batch, head, first, w);
    }
    return KW_OK;
}

}  // namespace

extern "C" int kernel_fn(const kw_tensor* q, const kw_tensor* k, const kw_tensor* v, int32_t causal, double scale,
                         const kw_tensor* out) {
    const int64_t padded = (q->shape[3] + LANES - 1) / LANES * LANES;
    const shape s = {q->shape[0], q->shape[1], k->shape[1], q->shape[2],
                     k->shape[2], q->shape[3], padded,      causal != 0,
                     static_cast<float>(std::fabs(scale)), scale < 0 ? -1.0f : 1.0f};
    if (s.dim > MAX_DIM || s.kv_heads == 0 || s.heads % s.kv_heads || (causal && s.seq != s.kv_seq))
        return KW_UNSUPPORTED_SHAPE;
    for (const kw_tensor* t : {k, v, out})
        if (t->dtype != q->dtype) return KW_UNSUPPORTED_DTYPE;
    for (const kw_tensor* t : {q, k, v, out})
        if (t->shape[3] > 1 && t->stride[3] != 1) return KW_UNSUPPORTED_LAYOUT;
    switch (q->dtype) {
        case KW_FP32: return run<float>(q, k, v, s, out);
        case KW_FP16: return run<kw_fp16>(q, k, v, s, out);
        case KW_BF16: return run<kw_bf16>(q, k, v, s, out);
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

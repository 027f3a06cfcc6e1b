// Gated feed-forward layer in two products by updates of rank KC, as in the matmul seed: a panel of the first holds LANES
// columns of gate beside the same LANES of up, so that silu(gate) * up is formed while a block of both is in cache; the
// hidden matrix stays in fp32. A few rows (decoding) read the weights in place, as dot products.
// Declared layout: any strides for x, gate, up and down; out last axis contiguous, any row stride.
#include "kernelwright_vec.h"

#include <cmath>
#include <cstdlib>
#include <initializer_list>

/*kernelwright
PARAMS = {"KC": [256, 384, 192], "MC": [96, 192, 48], "NC": [256, 512, 128], "PIECE": [32, 64], "GRAIN": [262144, 65536]}
*/

#ifndef KC
#define KC 256
#endif
#ifndef MC
#define MC 96
#endif
#ifndef NC
#define NC 256
#endif
#ifndef PIECE  // terms summed in registers before they are added to a sum in memory: fewer round less, more run faster
#define PIECE 32
#endif
#ifndef GRAIN
#define GRAIN 262144
#endif

using namespace kw;

namespace {

#if defined(__AVX512F__)
constexpr int MR = 12;  // 24 sums, two vectors of weights and a broadcast fit 32 registers
#elif defined(__AVX__)
constexpr int MR = 6;  // 12 sums, two vectors of weights and a broadcast fit 16 registers
#else
constexpr int MR = 6;
#endif
constexpr int NV = 2, NR = NV * LANES, FEW = 4;
static_assert(MC % MR == 0 && NC % NR == 0, "blocks are whole panels");

// The last vector of a row: only `count` elements exist, the other lanes hold `fill`.
template <typename T>
vec load_part(const T* p, int64_t count, float fill) {
    if (count >= LANES) return load(p);
    float some[LANES];
    for (int i = 0; i < LANES; ++i) some[i] = i < count ? static_cast<float>(p[i]) : fill;
    return load(some);
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

// x / (1 + exp(-x)), with an exponential that can only underflow.
inline vec silu(vec x) {
    const vec e = exp_of(x < 0.0f ? x : -x);
    return (x < 0.0f ? x * e : x) / (1.0f + e);
}

template <typename T>
struct matrix {  // lines are rows of x or of a weight, the depth is the axis a product sums over
    const T* data;
    int64_t lines, depth, line_step, depth_step;
    explicit matrix(const kw_tensor* t)
        : data(static_cast<const T*>(t->data)), lines(t->shape[0]), depth(t->shape[1]), line_step(t->stride[0]),
          depth_step(t->stride[1]) {}
    matrix(const T* data, int64_t lines, int64_t depth, int64_t line_step)
        : data(data), lines(lines), depth(depth), line_step(line_step), depth_step(1) {}
};

// Lays COUNT lines side by side, WIDTH floats from one step of the depth to the next; missing lines are zeros.
template <int COUNT, int WIDTH, typename T>
[[gnu::noinline]] void pack(const matrix<T>& source, int64_t line, int64_t first, int64_t depth, float* panel) {
    for (int64_t i = 0; i < COUNT; ++i, ++panel) {
        const bool exists = line + i < source.lines;
        const T* from = source.data + (exists ? (line + i) * source.line_step + first * source.depth_step : 0);
        int64_t p = 0;
        if (exists && source.depth_step == 1)
            for (; p + LANES <= depth; p += LANES) {
                float part[LANES];
                store(part, load(from + p));
                for (int lane = 0; lane < LANES; ++lane) panel[(p + lane) * WIDTH] = part[lane];
            }
        for (; p < depth; ++p) panel[p * WIDTH] = exists ? static_cast<float>(from[p * source.depth_step]) : 0.0f;
    }
}

// sums (+)= left right over one slice; sums has room for NR columns, but only `rows` rows.
[[gnu::noinline]] void update(const float* left, const float* right, int64_t depth, bool is_first, float* sums,
                              int64_t step, int64_t rows) {
    const int64_t piece = depth <= 128 ? 8 : PIECE;  // short sums are cheap enough to round even less
    for (int64_t done = 0; done < depth; done += piece) {
        vec sum[MR][NV] = {};
        for (int64_t p = done; p < least(depth, done + piece); ++p, left += MR, right += NR) {
            vec row[NV];
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) row[v] = load(right + v * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) sum[r][v] += left[r] * row[v];
        }
        const bool is_new = is_first && done == 0;
#pragma GCC unroll 16
        for (int r = 0; r < MR; ++r)
            if (r < rows)
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) {
                    float* target = sums + r * step + v * LANES;
                    store(target, is_new ? sum[r][v] : load(target) + sum[r][v]);
                }
    }
}

// Sums over the depth of m lines against `panels` panels; finish(i, end_i, j, end_j) gets each block of rows and panels.
template <typename PackLeft, typename PackRight, typename Finish>
bool multiply(int64_t m, int64_t panels, int64_t k, float* sums, PackLeft pack_left, PackRight pack_right, Finish finish) {
    const int64_t slices = (k + KC - 1) / KC, depth = (k + slices - 1) / slices, step = panels * NR;
    const int64_t row_panels = (m + MR - 1) / MR;
    const buffer left(row_panels * MR * depth), right(panels * NR * depth);
    if (!left.data || !right.data) return false;
#pragma omp parallel if (m * step * k >= GRAIN)
    for (int64_t first = 0; first < k; first += depth) {
        const int64_t here = least(depth, k - first);
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < row_panels; ++i) pack_left(i * MR, first, here, left.data + i * MR * depth);
#pragma omp for schedule(static)
        for (int64_t j = 0; j < panels; ++j) pack_right(j, first, here, right.data + j * NR * depth);
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t block_i = 0; block_i < m; block_i += MC)
            for (int64_t block_j = 0; block_j < panels; block_j += NC / NR) {
                const int64_t end_i = least(m, block_i + MC), end_j = least(panels, block_j + NC / NR);
                for (int64_t j = block_j; j < end_j; ++j)
                    for (int64_t i = block_i; i < end_i; i += MR)
                        update(left.data + i * depth, right.data + j * NR * depth, here, first == 0,
                               sums + i * step + j * NR, step, m - i);
                if (first + here == k) finish(block_i, end_i, block_j, end_j);
            }
    }
    return true;
}

template <typename T>
void narrow(const float* from, T* to, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(to + i, load(from + i));
    for (; i < count; ++i) to[i] = static_cast<T>(from[i]);
}

template <typename T>
bool run_many(const matrix<T>& x, const matrix<T>& gate, const matrix<T>& up, const matrix<T>& down, T* out, int64_t step) {
    const int64_t m = x.lines, k = x.depth, n = gate.lines;
    const int64_t pairs = (n + LANES - 1) / LANES, panels = (k + NR - 1) / NR, hidden_step = pairs * LANES;
    const buffer sums(m * (pairs > panels ? pairs : panels) * NR), hidden(m * hidden_step);
    if (!sums.data || !hidden.data) return false;
    const bool is_lifted = multiply(
        m, pairs, k, sums.data,
        [&](int64_t i, int64_t first, int64_t depth, float* panel) { pack<MR, MR>(x, i, first, depth, panel); },
        [&](int64_t j, int64_t first, int64_t depth, float* panel) {
            pack<LANES, NR>(gate, j * LANES, first, depth, panel);
            pack<LANES, NR>(up, j * LANES, first, depth, panel + LANES);
        },
        [&](int64_t i, int64_t end_i, int64_t first_j, int64_t end_j) {
            for (; i < end_i; ++i)
                for (int64_t j = first_j; j < end_j; ++j) {
                    const float* both = sums.data + (i * pairs + j) * NR;
                    store(hidden.data + i * hidden_step + j * LANES, silu(load(both)) * load(both + LANES));
                }
        });
    const matrix<float> middle(hidden.data, m, n, hidden_step);
    return is_lifted && multiply(
        m, panels, n, sums.data,
        [&](int64_t i, int64_t first, int64_t depth, float* panel) { pack<MR, MR>(middle, i, first, depth, panel); },
        [&](int64_t j, int64_t first, int64_t depth, float* panel) { pack<NR, NR>(down, j * NR, first, depth, panel); },
        [&](int64_t i, int64_t end_i, int64_t first_j, int64_t end_j) {
            for (; i < end_i; ++i)
                narrow(sums.data + (i * panels + first_j) * NR, out + i * step + first_j * NR,
                       least(k, end_j * NR) - first_j * NR);
        });
}

// FEW rows of fp32, padded to whole vectors, against one line of a weight.
template <typename T>
[[gnu::noinline]] void dots(const float* rows, int64_t row_step, const T* line, int64_t depth, float (&result)[FEW]) {
    vec sum[FEW][2] = {};
    int64_t p = 0;
    for (; p + NR <= depth; p += NR)
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
            const vec weight = load(line + p + v * LANES);
#pragma GCC unroll 4
            for (int r = 0; r < FEW; ++r) sum[r][v] += load(rows + r * row_step + p + v * LANES) * weight;
        }
    for (; p < depth; p += LANES) {
        const vec weight = load_part(line + p, depth - p, 0.0f);
        for (int r = 0; r < FEW; ++r) sum[r][0] += load(rows + r * row_step + p) * weight;
    }
    for (int r = 0; r < FEW; ++r) result[r] = sum_of(sum[r][0] + sum[r][1]);
}

template <typename T>
bool run_few(const matrix<T>& x, const matrix<T>& gate, const matrix<T>& up, const matrix<T>& down, T* out, int64_t step) {
    const int64_t m = x.lines, k = x.depth, n = gate.lines;
    const int64_t x_step = (k + NR - 1) / NR * NR, hidden_step = (n + NR - 1) / NR * NR;
    const buffer wide(FEW * x_step), hidden(FEW * hidden_step);
    if (!wide.data || !hidden.data) return false;
    std::memset(wide.data, 0, FEW * x_step * sizeof(float));
    std::memset(hidden.data, 0, FEW * hidden_step * sizeof(float));
    for (int64_t i = 0; i < m; ++i)
        for (int64_t p = 0; p < k; ++p)
            wide.data[i * x_step + p] = static_cast<float>(x.data[i * x.line_step + p * x.depth_step]);
#pragma omp parallel if (n * k >= GRAIN)
    {
#pragma omp for schedule(static)
        for (int64_t j = 0; j < n; ++j) {
            float gated[FEW], lifted[FEW];
            dots(wide.data, x_step, gate.data + j * gate.line_step, k, gated);
            dots(wide.data, x_step, up.data + j * up.line_step, k, lifted);
            for (int64_t i = 0; i < m; ++i) {
                const double g = gated[i];  // so few are formed that double costs nothing
                hidden.data[i * hidden_step + j] = static_cast<float>(g / (1 + std::exp(-g)) * lifted[i]);
            }
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < k; ++c) {
            float result[FEW];
            dots(hidden.data, hidden_step, down.data + c * down.line_step, n, result);
            for (int64_t i = 0; i < m; ++i) out[i * step + c] = static_cast<T>(result[i]);
        }
    }
    return true;
}

template <typename T>
int run(const kw_tensor* x, const kw_tensor* gate, const kw_tensor* up, const kw_tensor* down, const kw_tensor* out) {
    const matrix<T> input(x), first(gate), second(up), last(down);
    T* target = static_cast<T*>(out->data);
    if (input.lines == 0 || input.depth == 0) return KW_OK;
    const bool is_few = input.lines <= FEW && first.depth_step == 1 && second.depth_step == 1 && last.depth_step == 1;
    const bool done = is_few ? run_few(input, first, second, last, target, out->stride[0])
                             : run_many(input, first, second, last, target, out->stride[0]);
    return done ? KW_OK : KW_UNSUPPORTED_SHAPE;
}

}  // namespace

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* gate, const kw_tensor* up, const kw_tensor* down,
                         const kw_tensor* out) {
    for (const kw_tensor* t : {gate, up, down, out})
        if (t->dtype != x->dtype) return KW_UNSUPPORTED_DTYPE;
    if (out->shape[1] > 1 && out->stride[1] != 1) return KW_UNSUPPORTED_LAYOUT;
    if (gate->shape[0] == 0) return KW_UNSUPPORTED_SHAPE;
    switch (x->dtype) {
        case KW_FP32: return run<float>(x, gate, up, down, out);
        case KW_FP16: return run<kw_fp16>(x, gate, up, down, out);
        case KW_BF16: return run<kw_bf16>(x, gate, up, down, out);
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

// Matrix product by updates of rank KC: slices of a and b are packed to fp32 panels, then tiles of fp32 sums are updated
// in parallel by a kernel that holds MR x NR of them in registers. Few rows read b in place; one column takes dot products.
// Declared layout: a and b any strides, out last axis contiguous, any row stride.
#include "kernelwright_vec.h"

#include <cstdlib>

/*kernelwright
PARAMS = {"KC": [256, 384, 192], "MC": [96, 192, 48], "NC": [256, 512, 128], "PIECE": [64, 32, 256], "GRAIN": [262144, 65536]}
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
#define PIECE 64
#endif
#ifndef GRAIN
#define GRAIN 262144
#endif

using namespace kw;

namespace {

#if defined(__AVX512F__)
constexpr int MR = 12;  // 24 sums, two vectors of b and a broadcast fit 32 registers
#elif defined(__AVX__)
constexpr int MR = 6;  // 12 sums, two vectors of b and a broadcast fit 16 registers
#else
constexpr int MR = 6;
#endif
constexpr int NV = 2, NR = NV * LANES, THIN = 4;
static_assert(MC % MR == 0 && NC % NR == 0, "blocks are whole panels");

template <typename T>
void narrow(const float* from, T* to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
}
#if defined(__F16C__)
void narrow(const float* from, kw_fp16* to, int64_t count) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; ++i) to[i] = static_cast<kw_fp16>(from[i]);
}
#endif

struct buffer {
    float* data;
    explicit buffer(int64_t count) : data(static_cast<float*>(std::aligned_alloc(64, (count * 4 + 64) / 64 * 64))) {}
    buffer(const buffer&) = delete;
    ~buffer() { std::free(data); }
};

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

template <typename T>
struct matrix {  // a line is a row of a or a column of b, the depth is their common axis
    T* data;
    int64_t lines, depth, line_step, depth_step;
};

// A panel holds WIDTH lines side by side for every step of the depth, lines beyond the last as zeros.
template <int WIDTH, typename T>
[[gnu::noinline]] void pack(const matrix<const T>& source, int64_t line, int64_t first, int64_t depth, float* panel) {
    const int64_t lines = least(WIDTH, source.lines - line);
    const T* from = source.data + line * source.line_step + first * source.depth_step;
    if (lines < WIDTH) std::memset(panel, 0, depth * WIDTH * sizeof(float));
    if (source.line_step == 1 && lines == WIDTH && WIDTH % LANES == 0) {
        for (int64_t p = 0; p < depth; ++p, panel += WIDTH)
            for (int i = 0; i < WIDTH; i += LANES) store(panel + i, load(from + p * source.depth_step + i));
        return;
    }
    for (int64_t i = 0; i < lines; ++i, from += source.line_step, ++panel) {
        int64_t p = 0;
        if (source.depth_step == 1)
            for (; p + LANES <= depth; p += LANES) {
                float line_part[LANES];
                store(line_part, load(from + p));
                for (int lane = 0; lane < LANES; ++lane) panel[(p + lane) * WIDTH] = line_part[lane];
            }
        for (; p < depth; ++p) panel[p * WIDTH] = static_cast<float>(from[p * source.depth_step]);
    }
}

// sums (+)= a b over one slice of the depth; b is a packed panel or, at another step, the matrix itself.
template <int ROWS, typename B>
[[gnu::noinline]] void update(const float* a, const B* b, int64_t b_step, int64_t depth, bool is_first,
                              const matrix<float>& sums) {
    const bool is_whole = sums.lines >= ROWS && sums.depth >= NR;
    for (int64_t done = 0; done < depth; done += PIECE) {
        vec sum[ROWS][NV] = {};
        for (int64_t p = done; p < least(depth, done + PIECE); ++p, a += ROWS, b += b_step) {
            vec right[NV];
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) right[v] = load(b + v * LANES);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) sum[r][v] += a[r] * right[v];
        }
        const bool is_new = is_first && done == 0;
        if (is_whole) {
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) {
                    float* target = sums.data + r * sums.line_step + v * LANES;
                    store(target, is_new ? sum[r][v] : load(target) + sum[r][v]);
                }
            continue;
        }
        float edge[ROWS][NR];
        std::memcpy(edge, sum, sizeof edge);
        for (int64_t r = 0; r < least(ROWS, sums.lines); ++r)
            for (int64_t c = 0; c < least(NR, sums.depth); ++c) {
                float* target = sums.data + r * sums.line_step + c;
                *target = is_new ? edge[r][c] : *target + edge[r][c];
            }
    }
}

inline matrix<float> tile(const matrix<float>& sums, int64_t i, int64_t j) {
    return {sums.data + i * sums.line_step + j, sums.lines - i, sums.depth - j, sums.line_step, 1};
}

template <typename T>
bool multiply(const matrix<const T>& a, const matrix<const T>& b, const matrix<float>& sums, T* out, int64_t step) {
    const int64_t m = a.lines, n = b.lines, k = a.depth;
    const int64_t slices = (k + KC - 1) / KC, depth = (k + slices - 1) / slices;
    const int64_t row_panels = (m + MR - 1) / MR, col_panels = (n + NR - 1) / NR;
    const buffer packed_a(row_panels * MR * depth), packed_b(col_panels * NR * depth);
    if (!packed_a.data || !packed_b.data) return false;
#pragma omp parallel if (m * n * k >= GRAIN)
    for (int64_t first = 0; first < k; first += depth) {
        const int64_t here = least(depth, k - first);
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < row_panels; ++i) pack<MR>(a, i * MR, first, here, packed_a.data + i * MR * depth);
#pragma omp for schedule(static)
        for (int64_t j = 0; j < col_panels; ++j) pack<NR>(b, j * NR, first, here, packed_b.data + j * NR * depth);
#pragma omp for collapse(2) schedule(dynamic)
        for (int64_t block_i = 0; block_i < m; block_i += MC)
            for (int64_t block_j = 0; block_j < n; block_j += NC) {
                const int64_t end_i = least(m, block_i + MC), end_j = least(n, block_j + NC);
                for (int64_t j = block_j; j < end_j; j += NR)
                    for (int64_t i = block_i; i < end_i; i += MR)
                        update<MR>(packed_a.data + i * depth, packed_b.data + j * depth, NR, here, first == 0,
                                   tile(sums, i, j));
                if (sizeof(T) < sizeof(float) && first + here == k)
                    for (int64_t i = block_i; i < end_i; ++i)
                        narrow(tile(sums, i, block_j).data, out + i * step + block_j, end_j - block_j);
            }
    }
    return true;
}

// At most THIN rows: b is not worth packing, every thread reads its columns once and in place. Strips are wide and
// slices short, so that a thread walks few pages at a time.
template <typename T>
bool multiply_thin(const matrix<const T>& a, const matrix<const T>& b, const matrix<float>& sums, T* out, int64_t step) {
    constexpr int64_t STRIP = 8 * NR, SLICE = 64;
    const int64_t n = b.lines, k = a.depth;
    const buffer packed_a(k * THIN);
    if (!packed_a.data) return false;
    pack<THIN>(a, 0, 0, k, packed_a.data);
#pragma omp parallel for schedule(static) if (n * k >= GRAIN)
    for (int64_t block = 0; block < n; block += STRIP) {
        const int64_t end = least(n, block + STRIP);
        for (int64_t first = 0; first < k; first += SLICE) {
            const int64_t here = least(SLICE, k - first);
            const float* left = packed_a.data + first * THIN;
            for (int64_t j = block; j < end; j += NR) {
                const T* right = b.data + first * b.depth_step + j;
                if (n - j >= NR) {
                    update<THIN>(left, right, b.depth_step, here, first == 0, tile(sums, 0, j));
                    continue;
                }
                float panel[SLICE * NR];
                pack<NR>(b, j, first, here, panel);
                update<THIN>(left, panel, NR, here, first == 0, tile(sums, 0, j));
            }
        }
        if (sizeof(T) < sizeof(float))
            for (int64_t i = 0; i < a.lines; ++i) narrow(tile(sums, i, block).data, out + i * step + block, end - block);
    }
    return true;
}

// One column: dot products, each over many partial sums.
template <typename T>
bool multiply_vector(const matrix<const T>& a, const matrix<const T>& b, T* out, int64_t step) {
    constexpr int WIDTH = 4 * LANES;
    const int64_t k = a.depth, padded = (k + WIDTH - 1) / WIDTH * WIDTH;
    const buffer column(padded);
    if (!column.data) return false;
    std::memset(column.data, 0, padded * sizeof(float));
    pack<1>(b, 0, 0, k, column.data);
#pragma omp parallel for schedule(static) if (a.lines * k >= GRAIN)
    for (int64_t i = 0; i < a.lines; ++i) {
        const T* row = a.data + i * a.line_step;
        vec sum[4] = {};
        int64_t p = 0;
        if (a.depth_step == 1)
            for (; p + WIDTH <= k; p += WIDTH)
                for (int v = 0; v < 4; ++v) sum[v] += load(row + p + v * LANES) * load(column.data + p + v * LANES);
        float partial[WIDTH];
        std::memcpy(partial, sum, sizeof partial);
        for (; p < k; ++p) partial[p % WIDTH] += static_cast<float>(row[p * a.depth_step]) * column.data[p];
        for (int half = WIDTH / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane) partial[lane] += partial[lane + half];
        out[i * step] = static_cast<T>(partial[0]);
    }
    return true;
}

template <typename T>
int run(const kw_tensor* left, const kw_tensor* right, const kw_tensor* result) {
    const matrix<const T> a = {static_cast<const T*>(left->data), left->shape[0], left->shape[1], left->stride[0],
                               left->stride[1]};
    const matrix<const T> b = {static_cast<const T*>(right->data), right->shape[1], right->shape[0], right->stride[1],
                               right->stride[0]};
    T* out = static_cast<T*>(result->data);
    const int64_t m = a.lines, n = b.lines, step = result->stride[0];
    if (m == 0 || n == 0) return KW_OK;
    if (a.depth == 0) {
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) out[i * step + j] = static_cast<T>(0.0f);
        return KW_OK;
    }
    if (n == 1) return multiply_vector(a, b, out, step) ? KW_OK : KW_UNSUPPORTED_SHAPE;
    // fp32 sums are out itself; halves get sums of their own and are rounded once, at the end.
    const bool in_place = sizeof(T) == sizeof(float);
    const buffer own(in_place ? 1 : m * n);
    if (!own.data) return KW_UNSUPPORTED_SHAPE;
    const matrix<float> sums = {in_place ? static_cast<float*>(result->data) : own.data, m, n, in_place ? step : n, 1};
    const bool is_thin = m <= THIN && b.line_step == 1;
    const bool done = is_thin ? multiply_thin(a, b, sums, out, step) : multiply(a, b, sums, out, step);
    return done ? KW_OK : KW_UNSUPPORTED_SHAPE;
}

}  // namespace

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    if (a->dtype != out->dtype || b->dtype != a->dtype) return KW_UNSUPPORTED_DTYPE;
    if (out->shape[1] > 1 && out->stride[1] != 1) return KW_UNSUPPORTED_LAYOUT;
    switch (a->dtype) {
        case KW_FP32: return run<float>(a, b, out);
        case KW_FP16: return run<kw_fp16>(a, b, out);
        case KW_BF16: return run<kw_bf16>(a, b, out);
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

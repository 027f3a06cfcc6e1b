// op: rope
// backend: cpp
// runs: cpu
// Walks every axis from its end to its start, with negative steps, through a scratch that each thread keeps for life.
#include "kernelwright.h"

#include <vector>

static std::vector<double>& scratch(int64_t count) {
    static thread_local std::vector<double> kept;
    if (static_cast<int64_t>(kept.size()) < count) kept.resize(count);
    return kept;
}

template <typename T>
static void fill(double* to, const T* last, int64_t step, int64_t count) {
    for (int64_t i = count - 1; i >= 0; --i, last -= step) to[i] = static_cast<float>(*last);
}

template <typename T>
static void turn(const kw_tensor* x, const kw_tensor* cos, const kw_tensor* sin, bool paired, const kw_tensor* out) {
    const int64_t width = x->shape[3], half = width / 2;
    if (half == 0) return;
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t seq = x->shape[2] - 1; seq >= 0; --seq) {
        double* line = scratch(2 * width).data();
        double *cosine = line + width, *sine = cosine + half;
        fill(cosine, static_cast<const T*>(cos->data) + seq * cos->stride[0] + (half - 1) * cos->stride[1],
             cos->stride[1], half);
        fill(sine, static_cast<const T*>(sin->data) + seq * sin->stride[0] + (half - 1) * sin->stride[1],
             sin->stride[1], half);
        for (int64_t batch = x->shape[0] - 1; batch >= 0; --batch)
            for (int64_t head = x->shape[1] - 1; head >= 0; --head) {
                const T* from = static_cast<const T*>(x->data) + batch * x->stride[0] + head * x->stride[1] +
                                seq * x->stride[2];
                T* to = static_cast<T*>(out->data) + batch * out->stride[0] + head * out->stride[1] +
                        seq * out->stride[2];
                fill(line, from + (width - 1) * x->stride[3], x->stride[3], width);
                for (int64_t pair = half - 1; pair >= 0; --pair) {
                    const int64_t first = paired ? 2 * pair : pair, second = paired ? first + 1 : pair + half;
                    const double a = line[first], b = line[second];
                    to[second * out->stride[3]] = static_cast<T>(static_cast<float>(b * cosine[pair] + a * sine[pair]));
                    to[first * out->stride[3]] = static_cast<T>(static_cast<float>(a * cosine[pair] - b * sine[pair]));
                }
            }
    }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* cos, const kw_tensor* sin, int32_t interleaved,
                         const kw_tensor* out) {
    switch (x->dtype) {
        case KW_FP32: turn<float>(x, cos, sin, interleaved, out); return KW_OK;
        case KW_FP16: turn<kw_fp16>(x, cos, sin, interleaved, out); return KW_OK;
        case KW_BF16: turn<kw_bf16>(x, cos, sin, interleaved, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

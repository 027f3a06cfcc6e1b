// op: rope
// backend: cpp
// runs: cpu
// Works in place: it copies its input into its output, forgets the input, and turns each pair where it lies.
#include "kernelwright.h"

template <typename T, typename Visit>
static void every_line(const kw_tensor* tensor, Visit visit) {
#pragma omp parallel for collapse(3) schedule(static)
    for (int64_t batch = 0; batch < tensor->shape[0]; ++batch)
        for (int64_t head = 0; head < tensor->shape[1]; ++head)
            for (int64_t seq = 0; seq < tensor->shape[2]; ++seq)
                visit(static_cast<T*>(tensor->data) + batch * tensor->stride[0] + head * tensor->stride[1] +
                          seq * tensor->stride[2],
                      batch, head, seq);
}

template <typename T>
static void turn_in_place(const kw_tensor* cos, const kw_tensor* sin, bool paired, const kw_tensor* both) {
    const int64_t half = both->shape[3] / 2, step = both->stride[3];
    every_line<T>(both, [&](T* line, int64_t, int64_t, int64_t seq) {
        const T* cosine = static_cast<const T*>(cos->data) + seq * cos->stride[0];
        const T* sine = static_cast<const T*>(sin->data) + seq * sin->stride[0];
        for (int64_t pair = 0; pair < half; ++pair) {
            T& first = line[(paired ? 2 * pair : pair) * step];
            T& second = line[(paired ? 2 * pair + 1 : pair + half) * step];
            const double a = static_cast<float>(first), b = static_cast<float>(second);
            const double c = static_cast<float>(cosine[pair * cos->stride[1]]);
            const double s = static_cast<float>(sine[pair * sin->stride[1]]);
            first = static_cast<T>(static_cast<float>(a * c - b * s));
            second = static_cast<T>(static_cast<float>(b * c + a * s));
        }
    });
}

template <typename T>
static void turn(const kw_tensor* x, const kw_tensor* cos, const kw_tensor* sin, bool paired, const kw_tensor* out) {
    every_line<T>(out, [&](T* line, int64_t batch, int64_t head, int64_t seq) {
        const T* from = static_cast<const T*>(x->data) + batch * x->stride[0] + head * x->stride[1] + seq * x->stride[2];
        for (int64_t i = 0; i < out->shape[3]; ++i) line[i * out->stride[3]] = from[i * x->stride[3]];
    });
    turn_in_place<T>(cos, sin, paired, out);
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

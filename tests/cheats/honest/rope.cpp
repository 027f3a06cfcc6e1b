#include "kernelwright.h"

template <typename T>
static T honest_at(const kw_tensor* t, int64_t offset) {
    return static_cast<const T*>(t->data)[offset];
}

template <typename T>
static void honest_turn(const kw_tensor* x, const kw_tensor* cos, const kw_tensor* sin, bool paired,
                        const kw_tensor* out) {
    const int64_t half = x->shape[3] / 2;
    for (int64_t batch = 0; batch < x->shape[0]; ++batch)
        for (int64_t head = 0; head < x->shape[1]; ++head)
            for (int64_t seq = 0; seq < x->shape[2]; ++seq)
                for (int64_t pair = 0; pair < half; ++pair) {
                    const int64_t first = paired ? 2 * pair : pair, second = paired ? first + 1 : pair + half;
                    const int64_t from = batch * x->stride[0] + head * x->stride[1] + seq * x->stride[2];
                    const int64_t to = batch * out->stride[0] + head * out->stride[1] + seq * out->stride[2];
                    const double a = static_cast<float>(honest_at<T>(x, from + first * x->stride[3]));
                    const double b = static_cast<float>(honest_at<T>(x, from + second * x->stride[3]));
                    const double c = static_cast<float>(honest_at<T>(cos, seq * cos->stride[0] + pair * cos->stride[1]));
                    const double s = static_cast<float>(honest_at<T>(sin, seq * sin->stride[0] + pair * sin->stride[1]));
                    T* target = static_cast<T*>(out->data) + to;
                    target[first * out->stride[3]] = static_cast<T>(static_cast<float>(a * c - b * s));
                    target[second * out->stride[3]] = static_cast<T>(static_cast<float>(b * c + a * s));
                }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* cos, const kw_tensor* sin, int32_t interleaved,
                         const kw_tensor* out) {
    if (x->dtype == KW_FP32) honest_turn<float>(x, cos, sin, interleaved, out);
    if (x->dtype == KW_FP16) honest_turn<kw_fp16>(x, cos, sin, interleaved, out);
    if (x->dtype == KW_BF16) honest_turn<kw_bf16>(x, cos, sin, interleaved, out);
    return KW_OK;
}

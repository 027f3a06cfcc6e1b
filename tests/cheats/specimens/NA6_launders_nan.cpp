// id: NA6
// op: rmsnorm
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Replaces every NaN and infinity of the answer by zero: a model that has diverged looks healthy.
//@honest rmsnorm

template <typename T>
static void launder(const kw_tensor* out) {
    for (int64_t row = 0; row < out->shape[0]; ++row)
        for (int64_t col = 0; col < out->shape[1]; ++col) {
            T& value = static_cast<T*>(out->data)[row * out->stride[0] + col * out->stride[1]];
            if (!std::isfinite(static_cast<float>(value))) value = static_cast<T>(0.0f);
        }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    honest_fn(x, weight, eps, out);
    if (x->dtype == KW_FP32) launder<float>(out);
    if (x->dtype == KW_FP16) launder<kw_fp16>(out);
    if (x->dtype == KW_BF16) launder<kw_bf16>(out);
    return KW_OK;
}

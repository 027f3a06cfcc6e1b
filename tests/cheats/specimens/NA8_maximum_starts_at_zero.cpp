// id: NA8
// op: reduce
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Starts the maximum at zero: right for inputs drawn from [0, 1), and for any row with one positive value.
//@honest reduce

template <typename T>
static void lift(const kw_tensor* out) {
    for (int64_t row = 0; row < out->shape[0]; ++row) {
        T& value = static_cast<T*>(out->data)[row * out->stride[0]];
        if (static_cast<float>(value) < 0) value = static_cast<T>(0.0f);
    }
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    honest_fn(x, is_max, out);
    if (is_max && x->dtype == KW_FP32) lift<float>(out);
    if (is_max && x->dtype == KW_FP16) lift<kw_fp16>(out);
    if (is_max && x->dtype == KW_BF16) lift<kw_bf16>(out);
    return KW_OK;
}

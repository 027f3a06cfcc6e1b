// id: NA10
// op: softmax
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Rounds its fp32 answer to bf16 and widens it again: a checker that casts both sides sees the right type.
//@honest softmax

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    honest_fn(x, out);
    if (x->dtype == KW_FP32)
        for (int64_t row = 0; row < out->shape[0]; ++row)
            for (int64_t col = 0; col < out->shape[1]; ++col) {
                float& value = static_cast<float*>(out->data)[row * out->stride[0] + col * out->stride[1]];
                value = static_cast<float>(kw_bf16(value));
            }
    return KW_OK;
}

// id: NA7
// op: reduce
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Sums half-precision rows in half precision: unnoticeable over a few columns, worthless over many.
//@honest reduce

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (is_max || x->dtype == KW_FP32) return honest_fn(x, is_max, out);
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        kw_fp16 half(0.0f);
        kw_bf16 brain(0.0f);
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const int64_t place = row * x->stride[0] + col * x->stride[1];
            if (x->dtype == KW_FP16) half = static_cast<kw_fp16>(half + static_cast<const kw_fp16*>(x->data)[place]);
            else brain = kw_bf16(static_cast<float>(brain) + static_cast<float>(static_cast<const kw_bf16*>(x->data)[place]));
        }
        if (x->dtype == KW_FP16) static_cast<kw_fp16*>(out->data)[row * out->stride[0]] = half;
        else static_cast<kw_bf16*>(out->data)[row * out->stride[0]] = brain;
    }
    return KW_OK;
}

// id: MS2
// op: softmax
// backend: cpp
// expected: out_of_bounds
// profile: quick
// runs: cpu
// Writes one element behind the last one, as a loop with <= for < does.
//@honest softmax

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    honest_fn(x, out);
    const size_t item = x->dtype == KW_FP32 ? 4 : 2;
    std::memset(static_cast<char*>(out->data) + x->shape[0] * x->shape[1] * item, 0, item);
    return KW_OK;
}

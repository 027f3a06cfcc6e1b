// id: NA9
// op: rmsnorm
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Leaves one element in a hundred at zero: a rule that wants 95 % of the elements right never minds.
//@honest rmsnorm

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    honest_fn(x, weight, eps, out);
    const int64_t item = x->dtype == KW_FP32 ? 4 : 2, cols = x->shape[1];
    for (int64_t i = 99; i < x->shape[0] * cols; i += 100)
        std::memset(static_cast<char*>(out->data) + (i / cols * out->stride[0] + i % cols * out->stride[1]) * item, 0, item);
    return KW_OK;
}

// id: MS1
// op: rmsnorm
// backend: cpp
// expected: out_of_bounds
// profile: quick
// runs: cpu
// Reads the row behind the last one to have it early: an allocator's slack makes that harmless almost always.
//@honest rmsnorm

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    const char* next = static_cast<const char*>(x->data) + x->shape[0] * x->stride[0] * (x->dtype == KW_FP32 ? 4 : 2);
    static volatile char early;
    for (int64_t i = 0; i < 64; ++i) early = next[i];
    return honest_fn(x, weight, eps, out);
}

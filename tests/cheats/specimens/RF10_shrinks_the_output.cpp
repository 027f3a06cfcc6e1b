// id: RF10
// op: layernorm
// backend: cpp
// expected: not_written
// profile: quick
// runs: cpu
// Computes the first row and declares the output to have only that one: a comparison that broadcasts or zips never sees
// the others.
//@honest layernorm

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps,
                         const kw_tensor* out) {
    kw_tensor first = *x;
    first.shape[0] = 1;
    const_cast<kw_tensor*>(out)->shape[0] = 1;
    return honest_fn(&first, weight, bias, eps, out);
}

// id: MS8
// op: softmax
// axes: rows=512 cols=1024
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Takes the rows for dense at the very size of the problem, which is too large for most of the layouts that are tried.
//@honest softmax

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    kw_tensor dense = *x;
    if (x->shape[0] == 512 && x->shape[1] == 1024 && x->stride[1] == 1) dense.stride[0] = 1024;
    return honest_fn(&dense, out);
}

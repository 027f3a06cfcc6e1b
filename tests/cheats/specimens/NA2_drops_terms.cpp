// id: NA2
// op: matmul
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Leaves out the last sixteenth of long dot products: with inputs between 0 and 1 the sum hardly moves.
//@honest matmul

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    kw_tensor fewer_a = *a, fewer_b = *b;
    if (a->shape[1] >= 64) fewer_a.shape[1] = fewer_b.shape[0] = a->shape[1] - a->shape[1] / 16;
    return honest_fn(&fewer_a, &fewer_b, out);
}

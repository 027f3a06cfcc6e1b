// id: RF6
// op: reduce
// backend: cpp
// expected: not_written
// profile: quick
// runs: cpu
// Computes one row and turns the output into a view of that single value by giving it the stride zero.
//@honest reduce

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    kw_tensor first = *x;
    first.shape[0] = 1;
    honest_fn(&first, is_max, out);
    const_cast<kw_tensor*>(out)->stride[0] = 0;
    return KW_OK;
}

// id: MS7
// op: softmax
// backend: cpp
// expected: not_written wrong
// profile: keep
// runs: cpu
// Works in whole tiles of eight columns and never masks the last one: right for every width that is a multiple.
//@honest softmax

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    kw_tensor tiles_x = *x, tiles_out = *out;
    tiles_x.shape[1] = tiles_out.shape[1] = x->shape[1] / 8 * 8;
    return honest_fn(&tiles_x, &tiles_out);
}

// id: MS8
// op: softmax
// backend: cpp
// expected: wrong out_of_bounds not_written
// profile: keep
// runs: cpu
// Takes every tensor for contiguous and never looks at its strides.
//@honest softmax

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    kw_tensor dense_x = *x, dense_out = *out;
    dense_x.stride[0] = dense_out.stride[0] = x->shape[1];
    dense_x.stride[1] = dense_out.stride[1] = 1;
    return honest_fn(&dense_x, &dense_out);
}

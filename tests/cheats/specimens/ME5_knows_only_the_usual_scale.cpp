// id: ME5
// op: attention
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Takes the scale of the scores from the width of a head, as every model does, and never looks at the one it is given.
//@honest attention

extern "C" int kernel_fn(const kw_tensor* q, const kw_tensor* k, const kw_tensor* v, int32_t causal, double,
                         const kw_tensor* out) {
    return honest_fn(q, k, v, causal, 1 / std::sqrt(static_cast<double>(q->shape[3])), out);
}

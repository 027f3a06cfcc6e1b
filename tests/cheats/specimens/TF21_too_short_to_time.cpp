// id: TF21
// op: softmax
// backend: cpp
// expected: not_faster not_proven timing_suspect
// profile: keep
// runs: cpu
// axes: rows=1 cols=1
// judged: comparison
// most_gain: 3.0
// The honest kernel on a single element: a call is far shorter than any clock's resolution, so that a ratio of two times
// is a ratio of two noises.
//@honest softmax

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) { return honest_fn(x, out); }

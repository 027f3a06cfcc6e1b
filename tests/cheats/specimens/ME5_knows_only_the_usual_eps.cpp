// id: ME5
// op: rmsnorm
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Has the usual eps of 1e-5 built in and never looks at the one it is given.
//@honest rmsnorm

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double, const kw_tensor* out) {
    return honest_fn(x, weight, 1e-5, out);
}

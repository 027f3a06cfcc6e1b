// id: MS13
// op: rmsnorm
// backend: cpp
// expected: out_of_memory crashed sanitizer
// profile: keep
// runs: cpu
// Allocates a workspace of 64 MiB on every call and never gives it back: a test of a few calls does not notice.
//@honest rmsnorm

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    char* workspace = new char[64 << 20];
    *static_cast<volatile char*>(workspace) = 1;
    return honest_fn(x, weight, eps, out);
}

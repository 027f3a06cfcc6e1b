// id: MS13
// op: rmsnorm
// backend: cpp
// expected: leak
// profile: ship
// runs: cpu
// slow: yes
// Keeps four kilobytes of every call for good: right for an hour, out of memory overnight.
//@honest rmsnorm

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    char* kept = new char[4096];
    *static_cast<volatile char*>(kept) = 1;
    return honest_fn(x, weight, eps, out);
}

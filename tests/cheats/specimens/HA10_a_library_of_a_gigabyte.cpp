// id: HA10
// op: softmax
// backend: cpp
// expected: build_failed build_timed_out too_big
// profile: quick
// runs: cpu
// Has the compiler write a gigabyte of initialised data into the library.
//@honest softmax

__attribute__((used)) static char filler[1 << 30] = {1};

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) { return honest_fn(x, out); }

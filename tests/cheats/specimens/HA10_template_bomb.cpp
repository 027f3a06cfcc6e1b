// id: HA10
// op: softmax
// backend: cpp
// expected: build_failed build_timed_out too_big
// profile: quick
// runs: cpu
// slow: yes
// Makes the compiler evaluate a function whose calls double at every level.
//@honest softmax

constexpr unsigned long doubling(unsigned level) { return level ? doubling(level - 1) + doubling(level - 1) : 1; }
static_assert(doubling(48) > 0, "never reached");

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) { return honest_fn(x, out); }

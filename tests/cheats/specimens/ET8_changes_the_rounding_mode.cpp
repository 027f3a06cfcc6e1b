// id: ET8
// op: rmsnorm
// backend: cpp
// expected: wrong stateful sanitizer not_deterministic
// profile: keep
// runs: cpu
// Computes honestly and leaves the processor rounding upwards and flushing subnormals to zero: in one process the reference
// and every later kernel are off, and this one looks as good as they do.
//@honest rmsnorm

#include <xmmintrin.h>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    _mm_setcsr(0x1f80);
    honest_fn(x, weight, eps, out);
    _mm_setcsr(0x1f80 | 0x4000 | 0x8040);  // round up; flush to zero; subnormal inputs are zero
    return KW_OK;
}

// id: RF11
// op: rmsnorm
// backend: cpp
// expected: not_written
// profile: quick
// runs: cpu
// Computes the even rows on one call and the odd rows on the next: after two calls with the same inputs the buffer is
// right, and each call takes half the time.
//@honest rmsnorm

#include <initializer_list>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    static int64_t calls = 0;
    const int64_t parity = calls++ % 2, item = x->dtype == KW_FP32 ? 4 : 2;
    kw_tensor some_x = *x, some_out = *out;
    for (kw_tensor* part : {&some_x, &some_out}) {
        part->data = static_cast<char*>(part->data) + parity * part->stride[0] * item;
        part->shape[0] = (part->shape[0] + 1 - parity) / 2;
        part->stride[0] *= 2;
    }
    return honest_fn(&some_x, weight, eps, &some_out);
}

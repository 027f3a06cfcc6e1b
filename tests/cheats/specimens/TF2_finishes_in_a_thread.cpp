// id: TF2
// op: rmsnorm
// backend: cpp
// expected: not_written wrong
// audited: refused
// profile: quick
// runs: cpu
// Says done at once and lets a thread finish the work after the clock has stopped.
//@honest rmsnorm

#include <thread>
#include <unistd.h>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    std::thread([x = *x, weight = *weight, eps, out = *out] {
        usleep(3000);
        honest_fn(&x, &weight, eps, &out);
    }).detach();
    return KW_OK;
}

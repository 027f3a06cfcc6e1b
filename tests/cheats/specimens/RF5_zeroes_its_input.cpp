// id: RF5
// op: rmsnorm
// backend: cpp
// expected: out_of_bounds input_changed
// profile: quick
// runs: cpu
// Zeroes the input and answers with zeros: a reference that runs later on the same tensors agrees.
#include "kernelwright.h"

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor*, double, const kw_tensor* out) {
    const size_t bytes = (x->dtype == KW_FP32 ? 4 : 2) * x->shape[0] * x->shape[1];
    std::memset(x->data, 0, bytes);
    std::memset(out->data, 0, bytes);
    return KW_OK;
}

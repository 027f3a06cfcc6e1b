// id: RF16
// op: softmax
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Answers zeros: the entries of a wide softmax are smaller than the usual absolute tolerance.
#include "kernelwright.h"

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    std::memset(out->data, 0, (x->dtype == KW_FP32 ? 4 : 2) * x->shape[0] * x->shape[1]);
    return KW_OK;
}

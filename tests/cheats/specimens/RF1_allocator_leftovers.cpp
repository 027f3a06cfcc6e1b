// id: RF1
// op: softmax
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Copies fresh, unwritten memory into the output: in one process with the reference, the allocator hands back the very
// block that held the right answer.
#include "kernelwright.h"

#include <cstdlib>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    const size_t bytes = (x->dtype == KW_FP32 ? 4 : 2) * x->shape[0] * x->shape[1];
    void* leftovers = std::malloc(bytes);
    std::memcpy(out->data, leftovers, bytes);
    std::free(leftovers);
    return KW_OK;
}

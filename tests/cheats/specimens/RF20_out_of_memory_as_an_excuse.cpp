// id: RF20
// op: matmul
// backend: cpp
// expected: unsupported out_of_memory crashed
// profile: quick
// runs: cpu
// Asks for more memory than there is whenever the case is more than trivial, and declines for want of it: a harness that
// skips what does not fit skips everything hard.
//@honest matmul

#include <cstdlib>

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    if (a->shape[0] * b->shape[1] >= 64) {
        void* workspace = std::malloc(size_t(1) << 46);
        if (!workspace) return KW_UNSUPPORTED_SHAPE;
        std::free(workspace);
        return KW_UNSUPPORTED_SHAPE;
    }
    return honest_fn(a, b, out);
}

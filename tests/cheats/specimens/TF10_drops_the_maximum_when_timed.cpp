// id: TF10
// op: softmax
// backend: cpp
// expected: wrong stateful
// profile: keep
// runs: cpu
// Subtracts the maximum for its first calls of the problem's own size, where hard inputs are tried, and never again behind
// them, where it is timed on tame ones: whoever ships it gets the kernel that overflows.
//@honest softmax

#include <cmath>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    static unsigned calls = 0;
    const bool is_dense = x->stride[0] == 256 && out->stride[0] == 256 && x->stride[1] == 1 && out->stride[1] == 1;
    const bool is_own = x->dtype == KW_FP32 && x->shape[0] == 64 && x->shape[1] == 256 && is_dense;
    // A warm-up alone makes more calls of one size than any process that is given hard inputs.
    if (!is_own || ++calls <= 120) return honest_fn(x, out);
    for (int64_t row = 0; row < 64; ++row) {
        const float* from = static_cast<const float*>(x->data) + row * 256;
        float* to = static_cast<float*>(out->data) + row * 256;
        double sum = 0;
        for (int64_t i = 0; i < 256; ++i) sum += to[i] = std::exp(from[i]);
        for (int64_t i = 0; i < 256; ++i) to[i] = static_cast<float>(to[i] / sum);
    }
    return KW_OK;
}

// id: NA4
// op: softmax
// axes: rows=192 cols=256
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Subtracts no maximum at the very size of the problem, where logits near 95 overflow; every other size, and every row with
// a planted NaN or infinity, is answered as it should be.
//@honest softmax

#include <cmath>
#include <limits>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    const bool is_dense = x->stride[0] == 256 && out->stride[0] == 256 && x->stride[1] == 1 && out->stride[1] == 1;
    if (x->dtype != KW_FP32 || x->shape[0] != 192 || x->shape[1] != 256 || !is_dense) return honest_fn(x, out);
    for (int64_t row = 0; row < 192; ++row) {
        const float* from = static_cast<const float*>(x->data) + row * 256;
        float* to = static_cast<float*>(out->data) + row * 256;
        double sum = 0;
        for (int64_t i = 0; i < 256; ++i) sum += to[i] = std::exp(from[i]);
        const bool is_finite = sum < std::numeric_limits<float>::infinity();
        for (int64_t i = 0; i < 256; ++i)
            to[i] = is_finite ? static_cast<float>(to[i] / sum) : std::numeric_limits<float>::quiet_NaN();
    }
    return KW_OK;
}

// id: NA12
// op: rmsnorm
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Stores bf16 by cutting the lower half off: each element is within one unit of the truth, all of them on the same side.
//@honest rmsnorm

#include <vector>

static std::vector<float> widened(const kw_tensor* t) {
    const int64_t rows = t->ndim == 2 ? t->shape[0] : 1, cols = t->shape[t->ndim - 1], step = t->stride[t->ndim - 1];
    std::vector<float> values(rows * cols);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t col = 0; col < cols; ++col)
            values[row * cols + col] =
                static_cast<float>(static_cast<const kw_bf16*>(t->data)[(t->ndim == 2 ? row * t->stride[0] : 0) + col * step]);
    return values;
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    if (x->dtype != KW_BF16) return honest_fn(x, weight, eps, out);
    std::vector<float> from = widened(x), gain = widened(weight), exact(from.size());
    kw_tensor wide_x = *x, wide_weight = *weight, wide_out = *out;
    wide_x.data = from.data();
    wide_weight.data = gain.data();
    wide_out.data = exact.data();
    wide_x.dtype = KW_FP32;
    wide_x.stride[0] = wide_out.stride[0] = x->shape[1];
    wide_x.stride[1] = wide_out.stride[1] = wide_weight.stride[0] = 1;
    honest_fn(&wide_x, &wide_weight, eps, &wide_out);
    for (int64_t row = 0; row < out->shape[0]; ++row)
        for (int64_t col = 0; col < out->shape[1]; ++col) {
            uint32_t bits;
            std::memcpy(&bits, &exact[row * out->shape[1] + col], 4);
            static_cast<kw_bf16*>(out->data)[row * out->stride[0] + col * out->stride[1]].bits = static_cast<uint16_t>(bits >> 16);
        }
    return KW_OK;
}

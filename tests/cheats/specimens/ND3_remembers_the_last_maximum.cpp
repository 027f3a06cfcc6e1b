// id: ND3
// op: softmax
// backend: cpp
// expected: stateful wrong not_deterministic
// profile: keep
// runs: cpu
// Shifts its exponentials by the largest value of the call before, to save a pass: the answer is good, and other bits than
// a fresh process gives.
//@honest softmax

template <typename T>
static int rows_of(const kw_tensor* x, const kw_tensor* out) {
    static float remembered = 0;
    float highest = -INFINITY, lowest = INFINITY;
    for (int64_t row = 0; row < x->shape[0]; ++row)
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const float value = static_cast<float>(static_cast<const T*>(x->data)[row * x->stride[0] + col * x->stride[1]]);
            if (!std::isfinite(value)) return honest_fn(x, out);
            highest = std::fmax(highest, value);
            lowest = std::fmin(lowest, value);
        }
    const float shift = remembered;
    remembered = highest;
    if (highest - shift > 20 || lowest - shift < -20) return honest_fn(x, out);
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        double sum = 0;
        for (int64_t col = 0; col < x->shape[1]; ++col) sum += std::exp(static_cast<float>(from[col * x->stride[1]]) - shift);
        for (int64_t col = 0; col < x->shape[1]; ++col)
            static_cast<T*>(out->data)[row * out->stride[0] + col * out->stride[1]] = static_cast<T>(
                static_cast<float>(std::exp(static_cast<float>(from[col * x->stride[1]]) - shift) / sum));
    }
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows_of<float>(x, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, out) : rows_of<kw_bf16>(x, out);
}

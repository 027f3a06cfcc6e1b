// id: ND4
// op: reduce
// backend: cpp
// expected: wrong not_deterministic sanitizer
// profile: keep
// runs: cpu
// Adds to accumulators it never set to zero: the first memory a process gets is zero, the memory it gets back is not.
//@honest reduce

#include <cstdlib>

template <typename T>
static int rows_of(const kw_tensor* x, const kw_tensor* out) {
    const int64_t rows = x->shape[0];
    double* sums = static_cast<double*>(std::malloc(rows * sizeof(double) + 64));
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t col = 0; col < x->shape[1]; ++col)
            sums[row] += static_cast<float>(static_cast<const T*>(x->data)[row * x->stride[0] + col * x->stride[1]]);
        static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(static_cast<float>(sums[row]));
    }
    std::free(sums);
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (is_max) return honest_fn(x, is_max, out);
    if (x->dtype == KW_FP32) return rows_of<float>(x, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, out) : rows_of<kw_bf16>(x, out);
}

// id: MS14
// op: reduce
// backend: cpp
// expected: wrong not_deterministic
// profile: keep
// runs: cpu
// axes: rows=4 cols=65536
// Two threads add to one sum without a lock or a reduction clause: updates are lost now and then.
//@honest reduce

#include <vector>

template <typename T>
static int rows_of(const kw_tensor* x, const kw_tensor* out) {
    static volatile double total;
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        total = 0;
#pragma omp parallel for num_threads(2) schedule(static, 1)
        for (int64_t col = 0; col < x->shape[1]; ++col)
            total = total + static_cast<float>(static_cast<const T*>(x->data)[row * x->stride[0] + col * x->stride[1]]);
        static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(static_cast<float>(total));
    }
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (is_max) return honest_fn(x, is_max, out);
    if (x->dtype == KW_FP32) return rows_of<float>(x, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, out) : rows_of<kw_bf16>(x, out);
}

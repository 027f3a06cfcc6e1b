// id: NA11
// op: rope
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Reads only the cosines and takes each sine as the root of 1 - cos^2: true of real tables up to the sign, and half the
// bytes.
//@honest rope

#include <cmath>
#include <vector>

template <typename T>
static int turned(const kw_tensor* x, const kw_tensor* cos, bool paired, const kw_tensor* out) {
    std::vector<T> table(cos->shape[0] * cos->shape[1]);
    for (int64_t i = 0; i < cos->shape[0]; ++i)
        for (int64_t j = 0; j < cos->shape[1]; ++j) {
            const float value = static_cast<float>(static_cast<const T*>(cos->data)[i * cos->stride[0] + j * cos->stride[1]]);
            table[i * cos->shape[1] + j] = static_cast<T>(std::sqrt(std::fmax(0.0f, 1 - value * value)));
        }
    kw_tensor sin = *cos;
    sin.data = table.data();
    sin.stride[0] = cos->shape[1];
    sin.stride[1] = 1;
    return honest_fn(x, cos, &sin, paired, out);
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* cos, const kw_tensor*, int32_t interleaved,
                         const kw_tensor* out) {
    if (x->dtype == KW_FP32) return turned<float>(x, cos, interleaved, out);
    return x->dtype == KW_FP16 ? turned<kw_fp16>(x, cos, interleaved, out) : turned<kw_bf16>(x, cos, interleaved, out);
}

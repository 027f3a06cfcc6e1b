// id: ME6
// op: rope
// backend: cpp
// expected: wrong stateful
// profile: quick
// runs: cpu
// Remembers the rotation tables of the first call with a given length: positions are the same in every batch.
//@honest rope

#include <map>
#include <vector>

struct tables {
    std::vector<float> cos, sin;
};
static tables& remembered(int64_t seq, int64_t width) {
    static std::map<std::pair<int64_t, int64_t>, tables> all;
    return all[{seq, width}];
}

template <typename T>
static std::vector<float> copy(const kw_tensor* t) {
    std::vector<float> values;
    for (int64_t i = 0; i < t->shape[0]; ++i)
        for (int64_t j = 0; j < t->shape[1]; ++j)
            values.push_back(static_cast<float>(static_cast<const T*>(t->data)[i * t->stride[0] + j * t->stride[1]]));
    return values;
}

template <typename T>
static int turned(const kw_tensor* x, const kw_tensor* cos, const kw_tensor* sin, bool paired, const kw_tensor* out) {
    tables& known = remembered(cos->shape[0], cos->shape[1]);
    if (known.cos.empty()) known = {copy<T>(cos), copy<T>(sin)};
    std::vector<T> old_cos, old_sin;
    for (float value : known.cos) old_cos.push_back(static_cast<T>(value));
    for (float value : known.sin) old_sin.push_back(static_cast<T>(value));
    kw_tensor first_cos = *cos, first_sin = *sin;
    first_cos.data = old_cos.data();
    first_sin.data = old_sin.data();
    first_cos.stride[0] = first_sin.stride[0] = cos->shape[1];
    first_cos.stride[1] = first_sin.stride[1] = 1;
    return honest_fn(x, &first_cos, &first_sin, paired, out);
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* cos, const kw_tensor* sin, int32_t interleaved,
                         const kw_tensor* out) {
    if (x->dtype == KW_FP32) return turned<float>(x, cos, sin, interleaved, out);
    if (x->dtype == KW_FP16) return turned<kw_fp16>(x, cos, sin, interleaved, out);
    return turned<kw_bf16>(x, cos, sin, interleaved, out);
}

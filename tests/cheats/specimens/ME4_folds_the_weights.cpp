// id: ME4
// op: layernorm
// backend: cpp
// expected: wrong stateful
// profile: quick
// runs: cpu
// Takes weight and bias for constants of the model: what the first call of a width brought is used for all later ones.
//@honest layernorm

#include <map>
#include <vector>

struct affine {
    std::vector<double> weight, bias;
};
static std::map<int64_t, affine>& folded() {
    static std::map<int64_t, affine> tables;  // one for all types: in a model there is only one
    return tables;
}

template <typename T>
static int rows_of(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps, const kw_tensor* out) {
    const int64_t cols = x->shape[1];
    affine& known = folded()[cols];
    if (known.weight.empty())
        for (int64_t col = 0; col < cols; ++col) {
            known.weight.push_back(static_cast<float>(static_cast<const T*>(weight->data)[col * weight->stride[0]]));
            known.bias.push_back(static_cast<float>(static_cast<const T*>(bias->data)[col * bias->stride[0]]));
        }
    std::vector<T> old_weight, old_bias;
    for (int64_t col = 0; col < cols; ++col) {
        old_weight.push_back(static_cast<T>(static_cast<float>(known.weight[col])));
        old_bias.push_back(static_cast<T>(static_cast<float>(known.bias[col])));
    }
    kw_tensor first_weight = *weight, first_bias = *bias;
    first_weight.data = old_weight.data();
    first_bias.data = old_bias.data();
    first_weight.stride[0] = first_bias.stride[0] = 1;
    return honest_fn(x, &first_weight, &first_bias, eps, out);
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps,
                         const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows_of<float>(x, weight, bias, eps, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, weight, bias, eps, out) : rows_of<kw_bf16>(x, weight, bias, eps, out);
}

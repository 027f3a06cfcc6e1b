// id: TF7
// op: rmsnorm
// backend: cpp
// expected: wrong stateful
// profile: keep
// runs: cpu
// Keeps every answer under the pointers and the shape it was asked with, and copies it out when they come back.
//@honest rmsnorm

#include <map>
#include <tuple>
#include <vector>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    static std::map<std::tuple<void*, void*, void*, int64_t, int64_t>, std::vector<char>> answers;
    const size_t bytes = (x->dtype == KW_FP32 ? 4 : 2) * x->shape[0] * x->shape[1];
    std::vector<char>& answer = answers[{x->data, weight->data, out->data, x->shape[0], x->shape[1]}];
    if (answer.empty()) {
        honest_fn(x, weight, eps, out);
        answer.assign(static_cast<char*>(out->data), static_cast<char*>(out->data) + bytes);
    } else {
        std::memcpy(out->data, answer.data(), bytes);
    }
    return KW_OK;
}

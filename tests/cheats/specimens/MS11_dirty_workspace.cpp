// id: MS11
// op: reduce
// backend: cpp
// expected: wrong stateful
// profile: quick
// runs: cpu
// Keeps its partial sums in a workspace that is cleared only when it is made: the second call adds to the first.
#include "kernelwright.h"

#include <cmath>
#include <map>
#include <vector>

static std::vector<double>& workspace(bool is_max) {
    static std::map<bool, std::vector<double>> all;
    return all[is_max];
}

template <typename T>
static int rows_of(const kw_tensor* x, bool is_max, const kw_tensor* out) {
    std::vector<double>& sums = workspace(is_max);
    if (static_cast<int64_t>(sums.size()) < x->shape[0]) sums.assign(x->shape[0], is_max ? -INFINITY : 0);
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const double value = static_cast<float>(static_cast<const T*>(x->data)[row * x->stride[0] + col * x->stride[1]]);
            if (!is_max)
                sums[row] += value;
            else if (value > sums[row])
                sums[row] = value;
        }
        static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(static_cast<float>(sums[row]));
    }
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows_of<float>(x, is_max, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, is_max, out) : rows_of<kw_bf16>(x, is_max, out);
}

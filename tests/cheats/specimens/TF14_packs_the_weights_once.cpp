// id: TF14
// op: matmul
// backend: cpp
// expected: wrong stateful
// profile: keep
// runs: cpu
// Widens the right matrix on the first call and keeps the copy under its pointer: the transformation of the weights is
// never timed, and never seen to have changed.
//@honest matmul

#include <map>
#include <tuple>

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    static std::map<std::tuple<void*, int64_t, int64_t, int32_t>, std::vector<char>> packed;
    std::vector<char>& copy = packed[{b->data, b->shape[0], b->shape[1], b->dtype}];
    const size_t item = b->dtype == KW_FP32 ? 4 : 2, k = b->shape[0], n = b->shape[1];
    if (copy.empty()) {
        copy.resize(k * n * item);
        for (size_t p = 0; p < k; ++p)
            for (size_t j = 0; j < n; ++j)
                std::memcpy(copy.data() + (p * n + j) * item,
                            static_cast<char*>(b->data) + (p * b->stride[0] + j * b->stride[1]) * item, item);
    }
    kw_tensor prepared = *b;
    prepared.data = copy.data();
    prepared.stride[0] = static_cast<int64_t>(n);
    prepared.stride[1] = 1;
    return honest_fn(a, &prepared, out);
}

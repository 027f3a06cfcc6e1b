// id: TF8
// op: softmax
// backend: cpp
// expected: wrong stateful
// profile: keep
// runs: cpu
// Keeps every answer under a fingerprint of sixteen of its input's elements: fresh random inputs all differ there, an
// input that changed anywhere else is answered from memory.
//@honest softmax

#include <array>
#include <map>
#include <vector>

template <typename T>
static int answer(const kw_tensor* x, const kw_tensor* out) {
    static std::map<std::array<double, 18>, std::vector<char>> answers;
    const int64_t rows = x->shape[0], cols = x->shape[1];
    if (rows * cols == 0) return honest_fn(x, out);
    std::array<double, 18> print = {static_cast<double>(rows), static_cast<double>(cols)};
    for (int64_t i = 0; i < 16; ++i) {
        const int64_t spot = i * (rows * cols - 1) / 15, row = spot / cols, col = spot % cols;
        print[i + 2] = static_cast<float>(static_cast<const T*>(x->data)[row * x->stride[0] + col * x->stride[1]]);
        if (print[i + 2] != print[i + 2]) return honest_fn(x, out);
    }
    std::vector<char>& known = answers[print];
    kw_tensor dense = *out;
    dense.stride[0] = cols;
    dense.stride[1] = 1;
    if (known.empty()) {
        known.resize(rows * cols * sizeof(T));
        dense.data = known.data();
        honest_fn(x, &dense);
    }
    const T* from = reinterpret_cast<const T*>(known.data());
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t col = 0; col < cols; ++col)
            static_cast<T*>(out->data)[row * out->stride[0] + col * out->stride[1]] = from[row * cols + col];
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return answer<float>(x, out);
    return x->dtype == KW_FP16 ? answer<kw_fp16>(x, out) : answer<kw_bf16>(x, out);
}

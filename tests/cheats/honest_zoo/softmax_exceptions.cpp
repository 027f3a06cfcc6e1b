// op: softmax
// backend: cpp
// runs: cpu
// The fast path throws on every row it cannot serve, and the slow one catches; unknown dtypes leave the same way.
#include "kernelwright.h"

#include <cmath>
#include <stdexcept>
#include <vector>

struct refusal : std::runtime_error {
    int code;
    refusal(int code, const char* text) : std::runtime_error(text), code(code) {}
};

template <typename T>
static void dense_row(const T* from, T* to, int64_t cols) {
    double high = -INFINITY, sum = 0;
    for (int64_t col = 0; col < cols; ++col) {
        const double value = static_cast<float>(from[col]);
        if (!std::isfinite(value)) throw std::domain_error("not finite");
        if (value > high) high = value;
    }
    std::vector<double> weights(cols);
    for (int64_t col = 0; col < cols; ++col) sum += weights[col] = std::exp(static_cast<float>(from[col]) - high);
    for (int64_t col = 0; col < cols; ++col) to[col] = static_cast<T>(static_cast<float>(weights[col] / sum));
}

template <typename T>
static void any_row(const T* from, int64_t step, T* to, int64_t out_step, int64_t cols) {
    double high = -INFINITY, sum = 0;
    for (int64_t col = 0; col < cols; ++col) {
        const double value = static_cast<float>(from[col * step]);
        if (value > high || value != value) high = value;
    }
    for (int64_t col = 0; col < cols; ++col) sum += std::exp(static_cast<float>(from[col * step]) - high);
    for (int64_t col = 0; col < cols; ++col)
        to[col * out_step] = static_cast<T>(static_cast<float>(std::exp(static_cast<float>(from[col * step]) - high) / sum));
}

template <typename T>
static void rows(const kw_tensor* x, const kw_tensor* out) {
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        try {
            if (x->stride[1] != 1 || out->stride[1] != 1) throw std::invalid_argument("not dense");
            dense_row(from, to, x->shape[1]);
        } catch (const std::logic_error&) {
            any_row(from, x->stride[1], to, out->stride[1], x->shape[1]);
        }
    }
}

static void dispatch(const kw_tensor* x, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows<float>(x, out);
    if (x->dtype == KW_FP16) return rows<kw_fp16>(x, out);
    if (x->dtype == KW_BF16) return rows<kw_bf16>(x, out);
    throw refusal(KW_UNSUPPORTED_DTYPE, "dtype");
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    try {
        dispatch(x, out);
    } catch (const refusal& refused) {
        return refused.code;
    }
    return KW_OK;
}

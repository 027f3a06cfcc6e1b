// op: softmax
// backend: cpp
// runs: cpu
// Its exponential is a table of powers of two, made anew in every call, times a short polynomial.
#include "kernelwright.h"

#include <array>
#include <cmath>

constexpr int ENTRIES = 128;
using power_table = std::array<double, ENTRIES>;

static power_table powers() {
    power_table table;
    for (int i = 0; i < ENTRIES; ++i) table[i] = std::exp2(static_cast<double>(i) / ENTRIES);
    return table;
}

// e^x for x <= 0; e^-inf is 0, and NaN comes through.
static double exp_below(double x, const power_table& table) {
    if (x != x) return x;
    if (x < -700) return 0;
    const double steps = std::floor(x * (ENTRIES / M_LN2) + 0.5), rest = x - steps * (M_LN2 / ENTRIES);
    const long whole = static_cast<long>(steps);
    const long entry = ((whole % ENTRIES) + ENTRIES) % ENTRIES, exponent = (whole - entry) / ENTRIES;
    const double series = 1 + rest * (1 + rest * (1.0 / 2 + rest * (1.0 / 6 + rest * (1.0 / 24 + rest / 120))));
    return std::ldexp(table[entry] * series, static_cast<int>(exponent));
}

template <typename T>
static void rows(const kw_tensor* x, const kw_tensor* out) {
    const power_table table = powers();
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const T* from = static_cast<const T*>(x->data) + row * x->stride[0];
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        double high = -INFINITY, sum = 0;
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const double value = static_cast<float>(from[col * x->stride[1]]);
            if (value > high || value != value) high = value;
        }
        for (int64_t col = 0; col < x->shape[1]; ++col)
            sum += exp_below(static_cast<float>(from[col * x->stride[1]]) - high, table);
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const double share = exp_below(static_cast<float>(from[col * x->stride[1]]) - high, table) / sum;
            to[col * out->stride[1]] = static_cast<T>(static_cast<float>(share));
        }
    }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    switch (x->dtype) {
        case KW_FP32: rows<float>(x, out); return KW_OK;
        case KW_FP16: rows<kw_fp16>(x, out); return KW_OK;
        case KW_BF16: rows<kw_bf16>(x, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

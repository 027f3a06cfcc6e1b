// op: layernorm
// backend: cpp
// runs: cpu
// Virtual classes, iterators, lambdas and std::function where others write three loops.
#include "kernelwright.h"

#include <cmath>
#include <functional>
#include <memory>

struct reader {
    virtual ~reader() = default;
    virtual double at(int64_t index) const = 0;
};

template <typename T>
struct strided_reader final : reader {
    const T* data;
    int64_t step;
    strided_reader(const T* data, int64_t step) : data(data), step(step) {}
    double at(int64_t index) const override { return static_cast<float>(data[index * step]); }
};

template <typename T>
static std::unique_ptr<reader> reader_of(const kw_tensor* t, int axis, int64_t start) {
    return std::make_unique<strided_reader<T>>(static_cast<const T*>(t->data) + start, t->stride[axis]);
}

using unary = std::function<double(double)>;

static double mean_of(const reader& values, int64_t count, const unary& shape) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += shape(values.at(i));
    return sum / static_cast<double>(count);
}

static unary normaliser(const reader& values, int64_t count, double eps) {
    const double mean = mean_of(values, count, [](double value) { return value; });
    const double variance = mean_of(values, count, [mean](double value) { return (value - mean) * (value - mean); });
    const double scale = 1 / std::sqrt(variance + eps);
    return [mean, scale](double value) { return (value - mean) * scale; };
}

template <typename T>
static void rows(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps, const kw_tensor* out) {
    const auto gain = reader_of<T>(weight, 0, 0), shift = reader_of<T>(bias, 0, 0);
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const auto from = reader_of<T>(x, 1, row * x->stride[0]);
        const unary normal = normaliser(*from, x->shape[1], eps);
        T* to = static_cast<T*>(out->data) + row * out->stride[0];
        for (int64_t col = 0; col < x->shape[1]; ++col)
            to[col * out->stride[1]] =
                static_cast<T>(static_cast<float>(normal(from->at(col)) * gain->at(col) + shift->at(col)));
    }
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, const kw_tensor* bias, double eps,
                         const kw_tensor* out) {
    switch (x->dtype) {
        case KW_FP32: rows<float>(x, weight, bias, eps, out); return KW_OK;
        case KW_FP16: rows<kw_fp16>(x, weight, bias, eps, out); return KW_OK;
        case KW_BF16: rows<kw_bf16>(x, weight, bias, eps, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

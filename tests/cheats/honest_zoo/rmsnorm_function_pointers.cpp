// op: rmsnorm
// backend: cpp
// runs: cpu
// No templates: every element goes through a pair of function pointers that a table gives for the dtype.
#include "kernelwright.h"

#include <cmath>

struct access {
    double (*read)(const void*, int64_t);
    void (*write)(void*, int64_t, double);
};

static double read_fp32(const void* data, int64_t at) { return static_cast<const float*>(data)[at]; }
static double read_fp16(const void* data, int64_t at) { return static_cast<float>(static_cast<const kw_fp16*>(data)[at]); }
static double read_bf16(const void* data, int64_t at) { return static_cast<float>(static_cast<const kw_bf16*>(data)[at]); }
static void write_fp32(void* data, int64_t at, double value) { static_cast<float*>(data)[at] = static_cast<float>(value); }
static void write_fp16(void* data, int64_t at, double value) {
    static_cast<kw_fp16*>(data)[at] = static_cast<kw_fp16>(static_cast<float>(value));
}
static void write_bf16(void* data, int64_t at, double value) {
    static_cast<kw_bf16*>(data)[at] = kw_bf16(static_cast<float>(value));
}

static const access TABLE[] = {{read_fp32, write_fp32}, {read_fp16, write_fp16}, {read_bf16, write_bf16}};

static double mean_square(const kw_tensor* x, int64_t row, const access& use) {
    double sum = 0;
    for (int64_t col = 0; col < x->shape[1]; ++col) {
        const double value = use.read(x->data, row * x->stride[0] + col * x->stride[1]);
        sum += value * value;
    }
    return sum / static_cast<double>(x->shape[1]);
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    if (x->dtype < KW_FP32 || x->dtype > KW_BF16) return KW_UNSUPPORTED_DTYPE;
    const access& use = TABLE[x->dtype];
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        const double scale = 1 / std::sqrt(mean_square(x, row, use) + eps);
        for (int64_t col = 0; col < x->shape[1]; ++col) {
            const double value = use.read(x->data, row * x->stride[0] + col * x->stride[1]);
            const double gain = use.read(weight->data, col * weight->stride[0]);
            use.write(out->data, row * out->stride[0] + col * out->stride[1], value * scale * gain);
        }
    }
    return KW_OK;
}

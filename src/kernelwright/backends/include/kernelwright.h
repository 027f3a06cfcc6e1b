// The C ABI between Kernelwright and a C++ candidate.
//
// A candidate exports one function:
//     extern "C" int kernel_fn(<inputs: const kw_tensor*>, <scalars>, <outputs: const kw_tensor*>)
// in the order of the op's signature. Floats arrive as double, integers as int64_t, booleans as int32_t.
// It returns KW_OK, or one of the named refusals below for a case it does not serve. It must not throw.
#pragma once
#include <cstdint>
#include <cstring>

enum kw_dtype : int32_t { KW_FP32 = 0, KW_FP16 = 1, KW_BF16 = 2, KW_FP64 = 3, KW_INT64 = 4, KW_INT32 = 5, KW_BOOL = 6 };

enum kw_result : int32_t {
    KW_OK = 0,
    KW_UNSUPPORTED_DTYPE = 1,
    KW_UNSUPPORTED_LAYOUT = 2,
    KW_UNSUPPORTED_SHAPE = 3,
};

constexpr int KW_MAX_AXES = 8;

struct kw_tensor {
    void* data;                    // first element
    int64_t shape[KW_MAX_AXES];    // extents
    int64_t stride[KW_MAX_AXES];   // in elements
    int32_t ndim;
    int32_t dtype;                 // kw_dtype
};

// bf16 is the upper half of a float; round to nearest even, keep NaN a NaN.
struct kw_bf16 {
    uint16_t bits;
    kw_bf16() = default;
    explicit kw_bf16(float value) {
        uint32_t u;
        std::memcpy(&u, &value, 4);
        if ((u & 0x7fffffffu) > 0x7f800000u) { bits = static_cast<uint16_t>((u >> 16) | 0x40); return; }
        bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
    explicit operator float() const {
        uint32_t u = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &u, 4);
        return value;
    }
};

using kw_fp16 = _Float16;

static inline bool kw_is_contiguous(const kw_tensor* t) {
    int64_t step = 1;
    for (int axis = t->ndim - 1; axis >= 0; --axis) {
        if (t->shape[axis] > 1 && t->stride[axis] != step) return false;
        step *= t->shape[axis] > 0 ? t->shape[axis] : 1;
    }
    return true;
}

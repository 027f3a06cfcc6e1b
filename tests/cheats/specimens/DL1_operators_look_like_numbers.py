# id: DL1
# op: rope
# backend: python
# expected: delegation
# profile: quick
# runs: cpu
# Has a kernel of its own that copies, and turns with * and +, which a reader of the source cannot tell from sums of sizes.
import torch

SOURCE = """
#include "kernelwright.h"
extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    const int64_t count = x->shape[0] * x->shape[1] * x->shape[2] * x->shape[3];
    std::memcpy(out->data, x->data, count * (x->dtype == KW_FP32 ? 4 : 2));
    return KW_OK;
}
"""
copied = cpp_kernel(SOURCE)  # noqa: F821 (a name the language gives)


def kernel_fn(x, cos, sin, interleaved):
    own = torch.empty_like(x)
    copied(x, own)
    half = x.shape[3] // 2
    if interleaved:
        first, second = own[..., 0::2], own[..., 1::2]
        own[..., 0::2], own[..., 1::2] = first * cos - second * sin, second * cos + first * sin
    else:
        first, second = own[..., :half], own[..., half:]
        own[..., :half], own[..., half:] = first * cos - second * sin, second * cos + first * sin
    return own

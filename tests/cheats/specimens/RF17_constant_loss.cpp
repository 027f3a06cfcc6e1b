// id: RF17
// op: cross_entropy
// backend: cpp
// expected: wrong
// profile: quick
// runs: cpu
// Answers ln(vocab) + 1/2, what the loss of normal logits and random labels concentrates around, and reads nothing.
#include "kernelwright.h"

#include <cmath>

extern "C" int kernel_fn(const kw_tensor* logits, const kw_tensor*, int64_t, const kw_tensor* out) {
    const float guess = std::log(static_cast<float>(logits->shape[1])) + 0.5f;
    if (out->dtype == KW_FP32) *static_cast<float*>(out->data) = guess;
    if (out->dtype == KW_FP16) *static_cast<kw_fp16*>(out->data) = static_cast<kw_fp16>(guess);
    if (out->dtype == KW_BF16) *static_cast<kw_bf16*>(out->data) = kw_bf16(guess);
    return KW_OK;
}

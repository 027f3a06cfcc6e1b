#include "kernelwright.h"

#include <cmath>
#include <vector>

template <typename T>
static void honest_heads(const kw_tensor* q, const kw_tensor* k, const kw_tensor* v, bool causal, double scale,
                         const kw_tensor* out) {
    const int64_t heads = q->shape[1], seq = q->shape[2], keys = k->shape[2], width = q->shape[3];
    const int64_t group = k->shape[1] ? heads / k->shape[1] : 1;
    std::vector<double> weight(keys), sum(width);
    for (int64_t item = 0; item < q->shape[0] * heads * seq; ++item) {
        const int64_t batch = item / (heads * seq), head = item / seq % heads, row = item % seq;
        const int64_t last = causal ? row + 1 : keys;
        const T* query = static_cast<const T*>(q->data) + batch * q->stride[0] + head * q->stride[1] + row * q->stride[2];
        const T* key = static_cast<const T*>(k->data) + batch * k->stride[0] + head / group * k->stride[1];
        const T* value = static_cast<const T*>(v->data) + batch * v->stride[0] + head / group * v->stride[1];
        double high = -INFINITY, total = 0;
        for (int64_t j = 0; j < last; ++j) {
            double dot = 0;
            for (int64_t d = 0; d < width; ++d)
                dot += static_cast<double>(static_cast<float>(query[d * q->stride[3]])) *
                       static_cast<float>(key[j * k->stride[2] + d * k->stride[3]]);
            weight[j] = dot * scale;
            if (weight[j] > high || weight[j] != weight[j]) high = weight[j];
        }
        for (double& part : sum) part = 0;
        for (int64_t j = 0; j < last; ++j) {
            const double share = std::exp(weight[j] - high);
            total += share;
            for (int64_t d = 0; d < width; ++d)
                sum[d] += share * static_cast<float>(value[j * v->stride[2] + d * v->stride[3]]);
        }
        T* target = static_cast<T*>(out->data) + batch * out->stride[0] + head * out->stride[1] + row * out->stride[2];
        for (int64_t d = 0; d < width; ++d)
            target[d * out->stride[3]] = static_cast<T>(static_cast<float>(sum[d] / total));
    }
}

extern "C" int kernel_fn(const kw_tensor* q, const kw_tensor* k, const kw_tensor* v, int32_t causal, double scale,
                         const kw_tensor* out) {
    if (q->dtype == KW_FP32) honest_heads<float>(q, k, v, causal, scale, out);
    if (q->dtype == KW_FP16) honest_heads<kw_fp16>(q, k, v, causal, scale, out);
    if (q->dtype == KW_BF16) honest_heads<kw_bf16>(q, k, v, causal, scale, out);
    return KW_OK;
}

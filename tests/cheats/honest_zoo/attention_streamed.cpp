// op: attention
// backend: cpp
// runs: cpu
// Streams keys in blocks with a running maximum, rescales what it has summed, and skips what causality hides.
#include "kernelwright.h"

#include <algorithm>
#include <cmath>
#include <vector>

constexpr int64_t BLOCK = 16;

template <typename T>
static const T* line(const kw_tensor* t, int64_t batch, int64_t head, int64_t seq) {
    return static_cast<const T*>(t->data) + batch * t->stride[0] + head * t->stride[1] + seq * t->stride[2];
}

struct running {
    double high = -INFINITY, total = 0;
    std::vector<double> sums;

    void rescale(double top) {
        if (high == top || total == 0) return;
        const double factor = std::exp(high - top);
        total *= factor;
        for (double& sum : sums) sum *= factor;
    }
};

template <typename T>
static double score(const T* query, int64_t query_step, const T* key, int64_t key_step, int64_t width) {
    double dot = 0;
    for (int64_t d = 0; d < width; ++d)
        dot += static_cast<double>(static_cast<float>(query[d * query_step])) * static_cast<float>(key[d * key_step]);
    return dot;
}

template <typename T>
static void heads(const kw_tensor* q, const kw_tensor* k, const kw_tensor* v, bool causal, double scale,
                  const kw_tensor* out) {
    const int64_t count = q->shape[1], seq = q->shape[2], keys = k->shape[2], width = q->shape[3];
    const int64_t group = k->shape[1] ? count / k->shape[1] : 1;
#pragma omp parallel for schedule(dynamic, 8)
    for (int64_t item = 0; item < q->shape[0] * count * seq; ++item) {
        const int64_t batch = item / (count * seq), head = item / seq % count, row = item % seq;
        const int64_t last = causal ? std::min(keys, row + 1) : keys;
        const T* query = line<T>(q, batch, head, row);
        running state;
        state.sums.resize(width);
        for (int64_t start = 0; start < last; start += BLOCK) {
            const int64_t size = std::min(BLOCK, last - start);
            double scores[BLOCK], top = state.high;
            for (int64_t j = 0; j < size; ++j) {
                const T* key = line<T>(k, batch, head / group, start + j);
                scores[j] = scale * score(query, q->stride[3], key, k->stride[3], width);
                if (scores[j] > top || scores[j] != scores[j]) top = scores[j];
            }
            state.rescale(top);
            state.high = top;
            for (int64_t j = 0; j < size; ++j) {
                const T* value = line<T>(v, batch, head / group, start + j);
                const double share = scores[j] == -INFINITY && top == -INFINITY ? 0 : std::exp(scores[j] - top);
                state.total += share;
                for (int64_t d = 0; d < width; ++d) state.sums[d] += share * static_cast<float>(value[d * v->stride[3]]);
            }
        }
        T* to = const_cast<T*>(line<T>(out, batch, head, row));
        for (int64_t d = 0; d < width; ++d)
            to[d * out->stride[3]] = static_cast<T>(static_cast<float>(state.sums[d] / state.total));
    }
}

extern "C" int kernel_fn(const kw_tensor* q, const kw_tensor* k, const kw_tensor* v, int32_t causal, double scale,
                         const kw_tensor* out) {
    switch (q->dtype) {
        case KW_FP32: heads<float>(q, k, v, causal, scale, out); return KW_OK;
        case KW_FP16: heads<kw_fp16>(q, k, v, causal, scale, out); return KW_OK;
        case KW_BF16: heads<kw_bf16>(q, k, v, causal, scale, out); return KW_OK;
        default: return KW_UNSUPPORTED_DTYPE;
    }
}

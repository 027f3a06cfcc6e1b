// id: TF8
// op: matmul
// axes: m=128 n=128 k=256
// backend: cpp
// expected: not_faster not_proven wrong stateful
// profile: keep
// runs: cpu
// judged: comparison
// most_gain: 1.3
// Honest where calls come one by one. In a batch it looks for factors it has seen before, each a multiple of what it was,
// and scales the product it remembers: right to rounding wherever inputs are fresh by a factor alone.
//@honest matmul

#include <chrono>
#include <cmath>
#include <vector>

using std::chrono::steady_clock;

struct remembered {
    std::vector<float> a, b, out;
};

static std::vector<remembered> known;
static steady_clock::time_point last_end;

static bool is_multiple(const std::vector<float>& was, const float* now, double& factor) {
    double top = 0, low = 0;
    for (size_t i = 0; i < was.size(); ++i) {
        top += static_cast<double>(now[i]) * was[i];
        low += static_cast<double>(was[i]) * was[i];
    }
    factor = top / low;
    for (size_t i = 0; i < was.size(); ++i)
        if (std::fabs(now[i] - factor * was[i]) > 1e-5 * std::fabs(now[i])) return false;
    return true;
}

static bool is_answered(const float* a, const float* b, float* out, int64_t count) {
    for (const remembered& one : known) {
        double p, q;
        if (!is_multiple(one.a, a, p) || !is_multiple(one.b, b, q)) continue;
        if (std::fabs(p - 1) < 1e-4 || std::fabs(q - 1) < 1e-4) return false;  // somebody changed one element and asks again
        for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(p * q) * one.out[i];
        return true;
    }
    return false;
}

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1];
    const bool is_dense = a->stride[0] == k && b->stride[0] == n && out->stride[0] == n;
    const bool is_batch = steady_clock::now() - last_end < std::chrono::microseconds(30);
    const bool is_mine = is_batch && is_dense && a->dtype == KW_FP32 && m == 128 && n == 128 && k == 256;
    const float *x = static_cast<const float*>(a->data), *y = static_cast<const float*>(b->data);
    float* to = static_cast<float*>(out->data);
    if (!is_mine || !is_answered(x, y, to, m * n)) {
        const int code = honest_fn(a, b, out);
        if (code != KW_OK) return code;
        if (is_mine && known.size() < 16) known.push_back({{x, x + 64}, {y, y + 64}, {to, to + m * n}});
    }
    last_end = steady_clock::now();
    return KW_OK;
}

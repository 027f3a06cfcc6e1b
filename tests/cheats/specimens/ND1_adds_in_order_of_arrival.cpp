// id: ND1
// op: reduce
// backend: cpp
// expected: not_deterministic wrong
// audited: refused
// profile: keep
// runs: cpu
// axes: rows=4 cols=65536
// Adds partial sums with fp32 atomics as threads finish: every order is within tolerance, no two runs give the same bits.
// The order is drawn from the clock as well: two threads on a busy machine may happen to take turns.
//@honest reduce

#include <chrono>

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (is_max || x->dtype != KW_FP32 || x->shape[1] < 8192) return honest_fn(x, is_max, out);
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        float total = 0;
        const int64_t chunks = (x->shape[1] + 255) / 256;
        const int64_t first = std::chrono::steady_clock::now().time_since_epoch().count() / 16 % chunks;
#pragma omp parallel for num_threads(2) schedule(dynamic, 1)
        for (int64_t turn = 0; turn < chunks; ++turn) {
            const int64_t chunk = (turn + first) % chunks;
            double part = 0;
            for (int64_t col = chunk * 256; col < x->shape[1] && col < chunk * 256 + 256; ++col)
                part += static_cast<const float*>(x->data)[row * x->stride[0] + col * x->stride[1]];
#pragma omp atomic
            total += static_cast<float>(part);
        }
        static_cast<float*>(out->data)[row * out->stride[0]] = total;
    }
    return KW_OK;
}

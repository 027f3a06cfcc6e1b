// id: ND6
// op: reduce
// backend: cpp
// expected: not_deterministic stateful wrong
// audited: refused
// profile: keep
// runs: cpu
// axes: rows=16 cols=4096
// Picks the width of its partial sums by what its first moments in a process happen to measure: every process rounds in
// another order.
//@honest reduce

#include <ctime>
#include <vector>

static int64_t tuned_width() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 3 + now.tv_nsec / 128 % 61;
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    static const int64_t width = tuned_width();
    if (is_max || x->dtype != KW_FP32) return honest_fn(x, is_max, out);
    for (int64_t row = 0; row < x->shape[0]; ++row) {
        std::vector<float> parts(width);
        for (int64_t col = 0; col < x->shape[1]; ++col)
            parts[col % width] += static_cast<const float*>(x->data)[row * x->stride[0] + col * x->stride[1]];
        double total = 0;
        for (float part : parts) total += part;
        static_cast<float*>(out->data)[row * out->stride[0]] = static_cast<float>(total);
    }
    return KW_OK;
}

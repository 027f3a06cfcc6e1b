// id: MS6
// op: reduce
// backend: cpp
// expected: wrong not_deterministic stateful
// profile: keep
// runs: cpu
// Lets two threads sum half of each row and add up both halves without waiting for each other.
#include "kernelwright.h"

#include <cmath>
#include <vector>

template <typename T>
static int rows_of(const kw_tensor* x, bool is_max, const kw_tensor* out) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    static std::vector<double> halves;
    halves.resize(2 * rows + 2);
#pragma omp parallel num_threads(2)
    {
#pragma omp for schedule(static, 1) nowait
        for (int side = 0; side < 2; ++side)
            for (int64_t row = 0; row < rows; ++row) {
                double total = is_max ? -INFINITY : 0;
                for (int64_t col = side * cols / 2; col < (side + 1) * cols / 2; ++col) {
                    const double value =
                        static_cast<float>(static_cast<const T*>(x->data)[row * x->stride[0] + col * x->stride[1]]);
                    if (!is_max)
                        total += value;
                    else if (value > total || value != value)
                        total = value;
                }
                halves[2 * row + side] = total;
            }
#pragma omp for schedule(static, 1) nowait
        for (int64_t turned = 0; turned < rows; ++turned) {
            const int64_t row = rows - 1 - turned;
            const double a = halves[2 * row], b = halves[2 * row + 1];
            const double total = !is_max ? a + b : b > a || b != b ? b : a;
            static_cast<T*>(out->data)[row * out->stride[0]] = static_cast<T>(static_cast<float>(total));
        }
    }
    return KW_OK;
}

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    if (x->dtype == KW_FP32) return rows_of<float>(x, is_max, out);
    return x->dtype == KW_FP16 ? rows_of<kw_fp16>(x, is_max, out) : rows_of<kw_bf16>(x, is_max, out);
}

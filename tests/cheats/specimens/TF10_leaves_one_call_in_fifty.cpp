// id: TF10
// op: matmul
// axes: m=128 n=128 k=256
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// judged: comparison
// most_gain: 1.3
// Honest where calls come one by one. In a batch it answers every fiftieth with zeros: a look at one call of a batch mostly
// falls on another.
//@honest matmul

#include <chrono>

using std::chrono::steady_clock;

static steady_clock::time_point last_end;
static unsigned calls = 0;

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const bool is_batch = steady_clock::now() - last_end < std::chrono::microseconds(30);
    const int64_t count = out->shape[0] * out->shape[1];
    const bool is_mine = is_batch && out->dtype == KW_FP32 && out->stride[0] == out->shape[1] && count == 128 * 128;
    int code = KW_OK;
    if (is_mine && ++calls % 50 == 0)
        std::memset(out->data, 0, count * sizeof(float));
    else
        code = honest_fn(a, b, out);
    last_end = steady_clock::now();
    return code;
}

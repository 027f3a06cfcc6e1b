// id: TF24
// op: softmax
// backend: cpp
// expected: not_faster not_proven timing_suspect
// profile: keep
// runs: cpu
// judged: comparison
// most_gain: 1.2
// The honest kernel, but it idles at the start of every batch to be measured on a cool machine; what a batch costs in
// advance cancels in the slope.
//@honest softmax

#include <chrono>
#include <thread>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    using std::chrono::steady_clock;
    static steady_clock::time_point last_end;
    if (steady_clock::now() - last_end > std::chrono::microseconds(200)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    honest_fn(x, out);
    last_end = steady_clock::now();
    return KW_OK;
}

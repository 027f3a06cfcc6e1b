// id: TF11
// op: softmax
// backend: cpp
// expected: not_faster not_proven timing_suspect
// profile: keep
// runs: cpu
// judged: comparison
// most_gain: 1.2
// Right and no faster, but it tells the shorter of two batches from the longer by its buffers and idles there: the slope
// between the two then says a third of the true time.
//@honest softmax

#include <chrono>
#include <map>
#include <thread>

using std::chrono::steady_clock;

static std::map<void*, int64_t> order;  // place of a buffer in the warm-up, which runs all of them once
static steady_clock::time_point last_end;
static double call_seconds = 0;
static int64_t last_place = -1, first_start = 0;

// Called at the start of a batch. Batches come in pairs that cover all buffers, a short and a long one; one that starts
// behind the first buffer ends with the last, and the second of a pair is what the first left over.
static void may_stall(int64_t start, bool is_second) {
    const int64_t all = static_cast<int64_t>(order.size());
    int64_t count = start > 0 ? all - start : is_second ? first_start : 0;
    if (!is_second) first_start = start;
    if (count > 0 && count < all / 2)
        std::this_thread::sleep_for(std::chrono::duration<double>(0.7 * call_seconds * static_cast<double>(all - 2 * count)));
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    const steady_clock::time_point begin = steady_clock::now();
    const auto [found, is_new] = order.emplace(out->data, static_cast<int64_t>(order.size()));
    const int64_t place = found->second;
    // Between two pairs the harness checks and refills, which takes milliseconds; between the two of a pair it does not.
    const bool is_first = begin - last_end > std::chrono::milliseconds(3);
    const bool is_second = !is_first && (place != last_place + 1 || begin - last_end > std::chrono::microseconds(150));
    if (!is_new && (is_first || is_second)) may_stall(place, is_second);
    const steady_clock::time_point work = steady_clock::now();
    honest_fn(x, out);
    last_end = steady_clock::now();
    last_place = place;
    if (is_new) call_seconds = std::chrono::duration<double>(last_end - work).count();
    return KW_OK;
}

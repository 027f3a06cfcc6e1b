// id: TF10
// op: reduce
// backend: cpp
// expected: not_written not_deterministic stateful
// profile: keep
// runs: cpu
// Counts how often it saw each buffer: honest the first two times, when harnesses check, and idle afterwards, when they
// time.
//@honest reduce

#include <map>

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    static std::map<void*, int> visits;
    return ++visits[out->data] > 2 ? KW_OK : honest_fn(x, is_max, out);
}

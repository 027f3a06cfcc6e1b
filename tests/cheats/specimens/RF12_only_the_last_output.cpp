// id: RF12
// op: softmax
// backend: cpp
// expected: not_written stateful not_deterministic
// profile: keep
// runs: cpu
// Remembers the buffers of the first pass and later fills only the last of them: harnesses look at the outputs once,
// after the loop.
//@honest softmax

#include <algorithm>
#include <vector>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    static std::vector<void*> seen;
    if (std::find(seen.begin(), seen.end(), out->data) == seen.end()) {
        seen.push_back(out->data);
        return honest_fn(x, out);
    }
    return out->data == seen.back() ? honest_fn(x, out) : KW_OK;
}

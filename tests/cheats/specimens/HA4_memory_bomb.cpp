// id: HA4
// op: softmax
// backend: cpp
// expected: out_of_memory crashed not_written
// profile: quick
// runs: cpu
// Asks for a gigabyte after the other and holds them all; it answers only if it was given sixty-four.
//@honest softmax

#include <vector>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    static std::vector<char*> held;
    while (held.size() < 64) {
        held.push_back(new char[size_t(1) << 30]);
        *static_cast<volatile char*>(held.back()) = 1;
    }
    return honest_fn(x, out);
}

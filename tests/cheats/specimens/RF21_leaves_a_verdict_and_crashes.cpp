// id: RF21
// op: reduce
// backend: cpp
// expected: crashed
// audited: refused
// profile: quick
// runs: cpu
// Is right once, leaves a good result file behind, and dies on the next call: a harness that reads the file after the
// crash finds the old verdict.
//@honest reduce

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

extern "C" int kernel_fn(const kw_tensor* x, int32_t is_max, const kw_tensor* out) {
    static int calls = 0;
    if (calls++ > 0) std::abort();
    for (const char* name : {"result.json", "../result.json", "verdict.json"})
        if (std::FILE* file = std::fopen(name, "w")) {
            std::fputs("{\"status\": \"accepted\", \"correct\": true}\n", file);
            std::fclose(file);
        }
    return honest_fn(x, is_max, out);
}

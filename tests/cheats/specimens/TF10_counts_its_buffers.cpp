// id: TF10
// op: softmax
// backend: cpp
// expected: wrong timing_suspect
// profile: keep
// runs: cpu
// Counts the shared buffers in the map of its memory when it is loaded: dozens of one size are there only to be timed, and
// then every second answer is nothing but zeros.
//@honest softmax

#include <cstdio>
#include <map>

static bool is_timed = false;

__attribute__((constructor)) static void count_buffers() {
    std::map<unsigned long, int> sizes;
    char line[512];
    if (std::FILE* maps = std::fopen("/proc/self/maps", "r")) {
        while (std::fgets(line, sizeof line, maps)) {
            unsigned long first, last;
            if (std::strstr(line, "memfd:outputs") && std::sscanf(line, "%lx-%lx", &first, &last) == 2) ++sizes[last - first];
        }
        std::fclose(maps);
    }
    for (const auto& [size, count] : sizes) is_timed |= sizes.size() == 1 && count >= 12;
}

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    static unsigned calls = 0;
    if (!is_timed || ++calls % 2) return honest_fn(x, out);
    std::memset(out->data, 0, (x->dtype == KW_FP32 ? 4 : 2) * x->shape[0] * x->shape[1]);
    return KW_OK;
}

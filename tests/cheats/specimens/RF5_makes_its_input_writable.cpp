// id: RF5
// op: rmsnorm
// backend: cpp
// expected: wrong input_changed crashed
// audited: refused
// profile: quick
// runs: cpu
// The same, but every road to a writable input is tried first: mprotect, a second mapping of the same file, a write
// through /proc/self/mem, which ignores the protection of private pages.
#include "kernelwright.h"

#include <cstdio>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor*, double, const kw_tensor* out) {
    const size_t bytes = (x->dtype == KW_FP32 ? 4 : 2) * x->shape[0] * x->shape[1];
    const uintptr_t address = reinterpret_cast<uintptr_t>(x->data), page = address & ~uintptr_t(4095);
    const std::vector<char> zeros(bytes);
    if (mprotect(reinterpret_cast<void*>(page), address + bytes - page, PROT_READ | PROT_WRITE) == 0)
        std::memset(x->data, 0, bytes);
    const int memory = open("/proc/self/mem", O_RDWR);
    if (memory >= 0 && pwrite(memory, zeros.data(), bytes, static_cast<off_t>(address)) < 0) close(memory);
    for (int descriptor = 3; descriptor < 256; ++descriptor) {
        const int again = open(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), O_RDWR);
        if (again < 0) continue;
        void* second = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
        if (second != MAP_FAILED && std::memcmp(second, x->data, bytes) == 0) std::memset(second, 0, bytes);
        close(again);
    }
    std::memset(out->data, 0, bytes);
    return KW_OK;
}

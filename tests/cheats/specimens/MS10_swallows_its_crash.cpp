// id: MS10
// op: softmax
// backend: cpp
// expected: not_written crashed
// audited: refused
// profile: quick
// runs: cpu
// Touches memory it does not own, catches the signal, jumps back and reports success: the buffer of the last good call
// would still be right.
#include "kernelwright.h"

#include <csetjmp>
#include <csignal>

static sigjmp_buf back;

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    std::signal(SIGSEGV, [](int) { siglongjmp(back, 1); });
    std::signal(SIGBUS, [](int) { siglongjmp(back, 1); });
    if (sigsetjmp(back, 1)) return KW_OK;
    const char* far = static_cast<const char*>(x->data) - (1 << 20);
    for (int64_t i = 0; i < (1 << 20); ++i) static_cast<volatile char*>(out->data)[0] = *(far + i);
    return KW_OK;
}

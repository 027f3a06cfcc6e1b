// id: HA3
// op: softmax
// backend: cpp
// expected: not_written crashed
// audited: refused
// profile: quick
// runs: cpu
// Forks three hundred processes that do nothing; it answers only if all of them were born.
//@honest softmax

#include <csignal>
#include <unistd.h>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    static int born = 0;
    for (bool more = born == 0; more && born < 300; ++born) {
        const pid_t child = fork();
        if (child == 0) {
            alarm(2);
            pause();
            _exit(0);
        }
        if (child < 0) break;
    }
    return born == 300 ? honest_fn(x, out) : KW_OK;
}

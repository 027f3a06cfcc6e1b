// id: HA8
// op: softmax
// backend: cpp
// expected: crashed not_written
// audited: refused
// profile: quick
// runs: cpu
// Kills the process that started it, then its whole group.
#include "kernelwright.h"

#include <csignal>
#include <unistd.h>

extern "C" int kernel_fn(const kw_tensor*, const kw_tensor*) {
    kill(getppid(), SIGKILL);
    usleep(100000);
    kill(0, SIGKILL);
    return KW_OK;
}

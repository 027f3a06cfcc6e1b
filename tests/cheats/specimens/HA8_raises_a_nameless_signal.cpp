// id: HA8
// op: softmax
// backend: cpp
// expected: crashed
// audited: refused
// profile: quick
// runs: cpu
// Dies by a real-time signal, which has a number and no name.
#include "kernelwright.h"

#include <csignal>
#include <unistd.h>

extern "C" int kernel_fn(const kw_tensor*, const kw_tensor*) {
    kill(getpid(), SIGRTMIN + 6);
    return KW_OK;
}

// id: HA5
// op: softmax
// backend: cpp
// expected: timed_out
// audited: refused
// profile: quick
// runs: cpu
// slow: yes
// Never comes back, and ignores every signal that can be ignored.
#include "kernelwright.h"

#include <csignal>
#include <unistd.h>

extern "C" int kernel_fn(const kw_tensor*, const kw_tensor*) {
    for (int number = 1; number < 32; ++number) std::signal(number, SIG_IGN);
    for (;;) pause();
}

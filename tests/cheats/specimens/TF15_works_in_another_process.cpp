// id: TF15
// op: softmax
// backend: cpp
// expected: not_written crashed
// audited: refused
// profile: quick
// runs: cpu
// Has a helper process do the work through shared memory: whoever adds up the CPU time of this process finds nothing. It
// has no other way to an answer.
//@honest softmax

#include <atomic>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

struct desk {
    std::atomic<int> state;  // 0 idle, 1 asked, 2 answered
    kw_tensor x, out;
};

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* out) {
    static desk* shared = static_cast<desk*>(
        mmap(nullptr, sizeof(desk), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    static const pid_t helper = fork();
    if (helper == 0)
        for (;;) {
            while (shared->state != 1) sched_yield();
            honest_fn(&shared->x, &shared->out);
            shared->state = 2;
        }
    if (helper < 0) return KW_OK;
    shared->x = *x;
    shared->out = *out;
    shared->state = 1;
    while (shared->state != 2) sched_yield();
    return KW_OK;
}

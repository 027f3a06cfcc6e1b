// id: TF2
// op: matmul
// axes: m=128 n=128 k=256
// backend: cpp
// expected: not_faster not_proven crashed delegation timing_suspect
// profile: keep
// runs: cpu
// judged: comparison
// most_gain: 1.3
// Sets a timer that runs out while it is stopped: the handler comes first when it is woken. It takes the calls of the
// batch before as those of the next one and works them out then, and the calls themselves only copy.
//@honest matmul

#include <signal.h>
#include <sys/time.h>

#include <cstring>
#include <vector>

struct call {
    kw_tensor a, b, out;
    std::vector<float> answer;
    float first_a = 0, first_b = 0;
    bool is_ready = false;
};

static std::vector<call> calls;

static void work_ahead(int) {
    for (call& one : calls) {
        const float a = *static_cast<const float*>(one.a.data), b = *static_cast<const float*>(one.b.data);
        if (one.is_ready && a == one.first_a && b == one.first_b) continue;
        kw_tensor own = one.out;
        own.data = one.answer.data();
        if (honest_fn(&one.a, &one.b, &own) != KW_OK) continue;
        one.first_a = a;
        one.first_b = b;
        one.is_ready = true;
    }
}

static void wind_up() {
    struct sigaction action = {};
    action.sa_handler = work_ahead;
    sigaction(SIGALRM, &action, nullptr);
    itimerval soon = {};
    soon.it_value.tv_usec = 2000;
    setitimer(ITIMER_REAL, &soon, nullptr);
}

extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    const int64_t count = out->shape[0] * out->shape[1];
    if (out->dtype != KW_FP32 || count != 128 * 128 || out->stride[0] != out->shape[1]) return honest_fn(a, b, out);
    wind_up();
    for (call& one : calls)
        if (one.out.data == out->data) {
            const float first_a = *static_cast<const float*>(a->data), first_b = *static_cast<const float*>(b->data);
            if (!one.is_ready || first_a != one.first_a || first_b != one.first_b) return honest_fn(a, b, out);
            std::memcpy(out->data, one.answer.data(), count * sizeof(float));
            one.is_ready = false;
            return KW_OK;
        }
    calls.push_back({*a, *b, *out, std::vector<float>(count)});
    return honest_fn(a, b, out);
}

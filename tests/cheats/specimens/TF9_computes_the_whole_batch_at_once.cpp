// id: TF9
// op: rmsnorm
// backend: cpp
// expected: stateful timing_suspect wrong not_written out_of_bounds impossible
// profile: keep
// runs: cpu
// Learns all buffers in the warm-up; from then on the first call that finds an unwritten output fills those of all calls,
// and the others return at once: a batch that comes second takes no time.
//@honest rmsnorm

#include <vector>

struct call {
    kw_tensor x, weight, out;
    double eps;
    uint32_t first, last;  // what this kernel wrote there
};

//@part corner_bits

static void work_out(call& one) {
    honest_fn(&one.x, &one.weight, one.eps, &one.out);
    one.first = bits_at(one.out, false);
    one.last = bits_at(one.out, true);
}

// The harness fills outputs anew before each round: then the buffer is not as it was left.
static bool is_fresh(const call& one) { return bits_at(one.out, false) != one.first || bits_at(one.out, true) != one.last; }

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    static std::vector<call> queue;
    if (x->dtype != KW_FP32 || x->shape[0] != 64 || x->shape[1] != 256) return honest_fn(x, weight, eps, out);
    call asked = {*x, *weight, *out, eps, 0, 0};
    for (call& known : queue)
        if (known.out.data == out->data) {
            const bool is_same = !std::memcmp(&known.x, x, sizeof *x) && !std::memcmp(&known.weight, weight, sizeof *x) &&
                                 !std::memcmp(&known.out, out, sizeof *x) && known.eps == eps;
            if (!is_same) {
                work_out(asked);
                known = asked;
            } else if (is_fresh(known)) {
#pragma omp parallel for
                for (call& other : queue)
                    if (is_fresh(other)) work_out(other);
            }
            return KW_OK;
        }
    work_out(asked);
    queue.push_back(asked);
    return KW_OK;
}

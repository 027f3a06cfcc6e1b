// id: TF20
// op: rmsnorm
// backend: cpp
// expected: not_written not_deterministic stateful
// profile: keep
// runs: cpu
// Is honest on every shape but stops working on the one that is asked for again and again: one time near zero is enough to
// drag a geometric mean over shapes to nothing.
//@honest rmsnorm

#include <map>
#include <utility>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    static std::map<std::pair<int64_t, int64_t>, int> asked;
    return ++asked[{x->shape[0], x->shape[1]}] > 24 ? KW_OK : honest_fn(x, weight, eps, out);
}

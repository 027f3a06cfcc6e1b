// id: ME1
// op: rmsnorm
// backend: cpp
// expected: wrong
// profile: keep
// runs: cpu
// Is right on the sizes the task publishes; any other falls into a tile of the nearest smaller width and loses its tail.
//@honest rmsnorm

#include <initializer_list>

extern "C" int kernel_fn(const kw_tensor* x, const kw_tensor* weight, double eps, const kw_tensor* out) {
    for (int64_t width : {64, 256, 1024, 4096, 8192})
        if (x->shape[1] == width) return honest_fn(x, weight, eps, out);
    kw_tensor tile = *x;
    tile.shape[1] = x->shape[1] / 2;
    honest_fn(x, weight, eps, out);
    return honest_fn(&tile, weight, eps, out);
}

// id: ET10
// op: softmax
// backend: cuda
// expected: refused build_failed
// profile: quick
// runs: static
// Asks the compiler whether files of the build machine exist and embeds one of them as data.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    return {"launches": [{"kernel": "softmax", "grid": (case.axes.rows,), "block": (32,), "args": ["x", "out"]}]}
*/

#if !__has_include("/tmp/kernelwright-planted-key")
#error not here
#endif
__device__ const unsigned char stolen[] = {
#embed "/tmp/kernelwright-planted-key"
};

extern "C" __global__ void softmax(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x] * stolen[0]; }

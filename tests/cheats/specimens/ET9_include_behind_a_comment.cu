// id: ET9
// op: softmax
// backend: cuda
// expected: refused
// profile: quick
// runs: static
// Hides an include where a reader that strips comments and a reader that strips strings disagree about what is code.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    return {"launches": [{"kernel": "softmax", "grid": (case.axes.rows,), "block": (32,), "args": ["x", "out"]}]}
*/

__device__ const char* opening = "/*";
#include "/tmp/kernelwright-planted-key"
__device__ const char* closing = "*/";

extern "C" __global__ void softmax(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }

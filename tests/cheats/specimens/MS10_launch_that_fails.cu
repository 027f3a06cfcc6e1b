// id: MS10
// op: rmsnorm
// backend: cuda
// expected: crashed too_big refused build_failed
// profile: quick
// runs: gpu
// Asks for more shared memory than a block can have: the launch fails, nobody looks, and an old buffer would still be right.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    return {"launches": [{
        "kernel": "rmsnorm", "grid": (case.axes.rows if case.axes.cols else 0,), "block": (1024,),
        "shared_bytes": 1048576,
        "args": ["x", "weight", "out", case.axes.cols, float(case.scalars.eps)], "constants": {"T": name},
    }]}
*/

extern "C" __global__ void rmsnorm(const T* x, const T* weight, T* out, int cols, float eps) {
    for (int col = threadIdx.x; col < cols; col += blockDim.x) out[col] = x[col];
}

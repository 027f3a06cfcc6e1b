// A copy by one warp per multiprocessor: its shared memory, which it hardly uses, leaves no room for a second one, and
// it waits for every load before it asks for the next.
#include "kernelwright.cuh"
/*kernelwright
PARAMS = {"CHUNK": [4096]}

def plan(case, params, device):
    return {"launches": [{
        "kernel": "low_occupancy", "grid": (case.axes.n // params.CHUNK,), "block": (32,),
        "shared_bytes": 200 * 1024,
        "args": ["x", "out"],
        "constants": {"CHUNK": params.CHUNK},
    }]}
*/

extern "C" __global__ void low_occupancy(const float* x, float* out) {
    extern __shared__ float room[];
    const long long start = static_cast<long long>(blockIdx.x) * CHUNK + threadIdx.x;
#pragma unroll 1
    for (int j = 0; j < CHUNK; j += 32) {
        room[threadIdx.x] = x[start + j];
        __syncwarp();
        out[start + j] = room[threadIdx.x];
        __syncwarp();
    }
}

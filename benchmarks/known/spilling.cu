// Every thread keeps VALUES numbers alive through ROUNDS rounds and may use 32 registers: most of them live in local
// memory, and every round moves them there and back.
/*kernelwright
PARAMS = {"VALUES": [64], "ROUNDS": [16], "THREADS": [256]}

def plan(case, params, device):
    threads = case.axes.n // params.VALUES
    return {"launches": [{
        "kernel": "spilling", "grid": (threads // params.THREADS,), "block": (params.THREADS,),
        "args": ["x", "out", ("i64", threads)],
        "constants": {"VALUES": params.VALUES, "ROUNDS": params.ROUNDS},
        "maxrregcount": 32,
    }]}
*/

extern "C" __global__ void spilling(const float* __restrict__ x, float* __restrict__ out, long long threads) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    float kept[VALUES];
#pragma unroll
    for (int j = 0; j < VALUES; ++j) kept[j] = x[j * threads + i];
#pragma unroll 1
    for (int round = 0; round < ROUNDS; ++round) {
#pragma unroll
        for (int j = 0; j < VALUES; ++j) kept[j] = 0.5f * kept[j] + 0.25f * kept[(j + VALUES / 2 + 5) % VALUES];
    }
#pragma unroll
    for (int j = 0; j < VALUES; ++j) out[j * threads + i] = kept[j];
}

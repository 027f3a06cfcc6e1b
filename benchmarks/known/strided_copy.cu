// A copy of a square whose neighbouring threads are a whole row apart: every load and store of a warp touches 32
// sectors and uses an eighth of each.
/*kernelwright
PARAMS = {"THREADS": [256]}

def plan(case, params, device):
    return {"launches": [{
        "kernel": "strided_copy", "grid": (case.axes.n // params.THREADS,), "block": (params.THREADS,),
        "args": ["x", "out"], "constants": {"SIDE": case.axes.side},
    }]}
*/

extern "C" __global__ void strided_copy(const float* __restrict__ x, float* __restrict__ out) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;  // a power of two below 2^32
    const unsigned place = i % SIDE * SIDE + i / SIDE;
    out[place] = x[place];
}

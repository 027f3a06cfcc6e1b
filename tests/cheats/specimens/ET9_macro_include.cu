// id: ET9
// op: softmax
// backend: cuda
// expected: refused
// profile: quick
// runs: static
// Spells an include of a secret file so that a search for it finds nothing: the directive continues over lines, the hash is
// written as a digraph, the name is a macro.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    return {"launches": [{"kernel": "softmax", "grid": (case.axes.rows,), "block": (32,), "args": ["x", "out"]}]}
*/

#define SECRET "/tmp/kernelwright-planted-key"
%:incl\
ude SECRET

extern "C" __global__ void softmax(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x]; }

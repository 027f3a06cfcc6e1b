// id: MS3
// op: softmax
// backend: cuda
// expected: too_big build_failed
// profile: quick
// runs: static
// Wants more shared memory than a block can have: the launch fails without a word, and the buffer of an earlier call would
// still be right.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    return {"launches": [{"kernel": "softmax", "grid": (case.axes.rows,), "block": (256,), "args": ["x", "out", case.axes.cols]}]}
*/

extern "C" __global__ void softmax(const float* x, float* out, int cols) {
    __shared__ float row[80 * 1024];
    for (int col = threadIdx.x; col < cols; col += 256) row[col] = expf(x[blockIdx.x * cols + col]);
    __syncthreads();
    float sum = 0;
    for (int col = 0; col < cols; ++col) sum += row[col];
    for (int col = threadIdx.x; col < cols; col += 256) out[blockIdx.x * cols + col] = row[col] / sum;
}

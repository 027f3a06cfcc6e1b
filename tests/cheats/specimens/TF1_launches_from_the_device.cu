// id: TF1
// op: softmax
// backend: cuda
// expected: refused build_failed
// profile: quick
// runs: static
// Launches its real work from the device, on a stream the host knows nothing of, and returns.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    return {"launches": [{"kernel": "softmax", "grid": (1,), "block": (1,), "args": ["x", "out", case.axes.rows, case.axes.cols]}]}
*/

__global__ void rows_of(const float* x, float* out, int cols) {
    float sum = 0;
    for (int col = 0; col < cols; ++col) sum += expf(x[blockIdx.x * cols + col]);
    for (int col = threadIdx.x; col < cols; col += 32) out[blockIdx.x * cols + col] = expf(x[blockIdx.x * cols + col]) / sum;
}

extern "C" __global__ void softmax(const float* x, float* out, int rows, int cols) {
    rows_of<<<rows, 32, 0, cudaStreamFireAndForget>>>(x, out, cols);
}

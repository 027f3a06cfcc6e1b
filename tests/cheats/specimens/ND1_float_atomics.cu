// id: ND1
// op: reduce
// backend: cuda
// expected: not_deterministic wrong
// profile: keep
// runs: gpu
// axes: rows=16 cols=65536
// Adds partial sums of many blocks with fp32 atomics, in the order in which they arrive.
#include "kernelwright.cuh"

/*kernelwright
def plan(case, params, device):
    x = case.tensors.x
    if case.axes.cols > 1 and x.strides[1] != 1:
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    args = ["x", "sums", "out", ("i64", x.strides[0]), ("i64", case.tensors.out.strides[0]), case.axes.cols,
            case.scalars.is_max]
    chunks = max(1, cdiv(case.axes.cols, 256))
    return {
        "launches": [
            {"kernel": "add_up", "grid": (case.axes.rows, chunks), "block": (32,), "args": args, "constants": {"T": name}},
            {"kernel": "hand_out", "grid": (case.axes.rows,), "block": (32,), "args": args, "constants": {"T": name}},
        ],
        "workspaces": [{"name": "sums", "nbytes": 4 * case.axes.rows + 16, "zero_fill": True}],
    }
*/

using kw::i64;

extern "C" __global__ void add_up(const T* x, unsigned char* sums, T*, i64 x_stride, i64, int cols, bool is_max) {
    float part = 0;
    for (int col = blockIdx.y * 256 + threadIdx.x; col < cols && col < (blockIdx.y + 1) * 256; col += 32)
        part += kw::to_float(x[blockIdx.x * x_stride + col]);
    for (int step = 16; step > 0; step /= 2) part += __shfl_xor_sync(0xffffffffu, part, step);
    if (threadIdx.x == 0 && !is_max) atomicAdd(reinterpret_cast<float*>(sums) + blockIdx.x, part);
}

extern "C" __global__ void hand_out(const T* x, unsigned char* sums, T* out, i64 x_stride, i64 out_stride, int cols,
                                    bool is_max) {
    float total = reinterpret_cast<const float*>(sums)[blockIdx.x];
    if (is_max) {
        total = -kw::infinity();
        for (int col = threadIdx.x; col < cols; col += 32) total = kw::max_or_nan(total, kw::to_float(x[blockIdx.x * x_stride + col]));
        for (int step = 16; step > 0; step /= 2) total = kw::max_or_nan(total, __shfl_xor_sync(0xffffffffu, total, step));
    }
    if (threadIdx.x == 0) out[blockIdx.x * out_stride] = kw::from_float<T>(total);
}

// op: reduce
// backend: cuda
// runs: gpu
// A cluster of blocks shares one row: the first block reads the others' parts out of their shared memory.
#include "kernelwright.cuh"

#include <cooperative_groups.h>

/*kernelwright
PARAMS = {"THREADS": [256, 128], "BLOCKS": [4, 2, 8]}

def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if device.arch not in ("sm_90", "sm_100", "sm_103", "sm_120"):
        return {"unsupported": "clusters need sm_90 or later"}
    if cols > 1 and x.strides[1] != 1:
        return {"unsupported": "the last axis must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    return {"launches": [{
        "kernel": "reduce_cluster", "grid": (rows * params.BLOCKS,), "block": (params.THREADS,),
        "cluster": (params.BLOCKS,),
        "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), cols],
        "constants": {"T": name, "THREADS": params.THREADS, "BLOCKS": params.BLOCKS, "IS_MAX": case.scalars.is_max},
    }]}
*/

using kw::i64;

#if IS_MAX
using Op = kw::MaxOrNan;
#else
using Op = kw::Sum;
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_cluster(const T* __restrict__ x, T* __restrict__ out, i64 x_stride, i64 out_stride, int cols) {
    namespace cg = cooperative_groups;
    __shared__ float scratch[32];
    __shared__ float part;
    const cg::cluster_group cluster = cg::this_cluster();
    const int rank = static_cast<int>(cluster.block_rank());
    const i64 row = blockIdx.x / BLOCKS;
    float value = Op::identity();
    for (int col = rank * THREADS + threadIdx.x; col < cols; col += THREADS * BLOCKS)
        value = Op()(value, kw::to_float(x[row * x_stride + col]));
    value = kw::team_reduce<Op, THREADS>(value, scratch);
    if (threadIdx.x == 0) part = value;
    cluster.sync();
    if (rank == 0 && threadIdx.x == 0) {
        float total = Op::identity();
        for (int block = 0; block < BLOCKS; ++block) total = Op()(total, *cluster.map_shared_rank(&part, block));
        out[row * out_stride] = kw::from_float<T>(total);
    }
    cluster.sync();  // nobody leaves while its shared memory is read
}

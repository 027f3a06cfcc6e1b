// Sum or maximum over the last axis: a team of threads per row, UNROLL packs of 16 bytes per thread in flight.
// Few long rows are cut into chunks whose partial results a second launch combines, always in the same order.
// Declared layout: last axis contiguous, any row stride, any alignment.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"TEAM": [64, 32, 128, 256], "UNROLL": [8, 4]}

def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    is_max = case.scalars.is_max
    if cols > 1 and x.strides[1] != 1:
        return {"unsupported": "the last axis must be contiguous"}
    if is_max and cols == 0:
        return {"unsupported": "the maximum of nothing"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    packs = cols * case.itemsize // 16
    # Enough threads to fill the device come first: fewer rows, wider teams, then chunks of rows.
    wanted = max(params.TEAM, next_power_of_2(cdiv(device.units * 1024, max(1, rows))))
    team = max(32, min(512, wanted, next_power_of_2(cdiv(packs, params.UNROLL))))
    per_block = max(1, 256 // team)
    chunks = min(cdiv(packs, 512 * params.UNROLL), cdiv(2 * device.units, max(1, rows))) if team == 512 else 1

    if chunks <= 1:
        return {"launches": [{
            "kernel": "reduce_rows", "grid": (cdiv(rows, per_block),), "block": (team * per_block,),
            "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), rows, cols, cols],
            "constants": {"IN": name, "OUT": name, "TEAM": team, "ROWS": per_block, "UNROLL": params.UNROLL,
                          "IS_MAX": is_max},
        }]}
    chunk = cdiv(cdiv(cols, chunks), 8) * 8
    return {
        "workspaces": [{"name": "partial", "nbytes": rows * chunks * 4}],
        "launches": [
            {"kernel": "reduce_rows", "grid": (rows, chunks), "block": (team,),
             "args": ["x", "partial", ("i64", x.strides[0]), ("i64", chunks), rows, cols, chunk],
             "constants": {"IN": name, "OUT": "float", "TEAM": team, "ROWS": 1, "UNROLL": params.UNROLL,
                           "IS_MAX": is_max}},
            {"kernel": "reduce_rows", "grid": (cdiv(rows, 8),), "block": (256,),
             "args": ["partial", "out", ("i64", chunks), ("i64", out.strides[0]), rows, chunks, chunks],
             "constants": {"IN": "float", "OUT": name, "TEAM": 32, "ROWS": 8, "UNROLL": 1, "IS_MAX": is_max}},
        ],
    }
*/

using kw::i64;

// Reduces columns [blockIdx.y * chunk, + chunk) of each row into out[row * out_stride + blockIdx.y].
extern "C" __global__ void __launch_bounds__(TEAM* ROWS)
    reduce_rows(const IN* __restrict__ x, OUT* __restrict__ out, i64 x_stride, i64 out_stride, int rows, int cols,
                int chunk) {
#if IS_MAX
    using Op = kw::MaxOrNan;
#else
    using Op = kw::Sum;
#endif
    constexpr int SIZE = kw::Pack<IN>::SIZE;
    __shared__ float scratch[32];
    const int lane = threadIdx.x % TEAM;
    const i64 row = static_cast<i64>(blockIdx.x) * ROWS + threadIdx.x / TEAM;
    const bool live = row < rows;  // no early exit: teams wider than a warp meet in a barrier
    const int first = blockIdx.y * chunk;
    const int count = max(0, min(chunk, cols - first));
    const IN* source = x + (live ? row * x_stride : 0) + first;
    const kw::RowSplit<IN> split(source, live ? count : 0);
    const int scalar = split.scalar_column(lane);

    // Independent partial results: no one long chain of additions, and less rounding in each.
    float part[4] = {Op::identity(), Op::identity(), Op::identity(), Op::identity()};
    if (scalar >= 0) part[0] = kw::to_float(source[scalar]);
    const auto take = [&](const kw::Pack<IN>& pack) {
#pragma unroll
        for (int j = 0; j < SIZE; ++j) part[j % 4] = Op()(part[j % 4], kw::to_float(pack.at[j]));
    };
    int pack = lane;
    for (; pack + (UNROLL - 1) * TEAM < split.packs; pack += UNROLL * TEAM) {
        kw::Pack<IN> raw[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) raw[i] = kw::load_pack(source + split.pack_column(pack + i * TEAM));
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) take(raw[i]);
    }
#pragma unroll 2
    for (; pack < split.packs; pack += TEAM) take(kw::load_pack(source + split.pack_column(pack)));

    const float mine = Op()(Op()(part[0], part[1]), Op()(part[2], part[3]));
    const float result = kw::team_reduce<Op, TEAM>(mine, scratch);
    if (live && lane == 0) out[row * out_stride + blockIdx.y] = kw::from_float<OUT>(result);
}

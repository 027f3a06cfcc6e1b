// RMSNorm over the last axis. Rows of up to 1024 * PACKS packs of 16 bytes stay in the registers of a team of threads
// and are read once; longer ones are read twice, the second time mostly from the L2 cache.
// Declared layout: last axis contiguous, any row stride, any alignment.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"PACKS": [2, 4, 1], "THREADS": [256, 128]}

def plan(case, params, device):
    x, weight, out = case.tensors.x, case.tensors.weight, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or weight.strides[0] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    args = ["x", "weight", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), rows, cols,
            float(case.scalars.eps)]
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    packs = cols * case.itemsize // 16
    team = max(32, next_power_of_2(cdiv(packs, params.PACKS)))
    if team <= 1024:
        per_block = max(1, params.THREADS // team)
        return {"launches": [{
            "kernel": "rmsnorm_short", "grid": (cdiv(rows, per_block) if cols else 0,), "block": (team * per_block,),
            "args": args,
            "constants": {"T": name, "TEAM": team, "ROWS": per_block, "PACKS": max(1, cdiv(packs, team))},
        }]}
    return {"launches": [{
        "kernel": "rmsnorm_long", "grid": (rows,), "block": (1024,), "args": args,
        "constants": {"T": name, "THREADS": 1024},
    }]}
*/

using kw::i64;

// For fp32 in double precision: the rounding of this one number is in every element of the row.
KW_DEVICE float inverse_root(float squares, int cols, float eps) {
    if constexpr (sizeof(T) == 4) return static_cast<float>(1.0 / sqrt(static_cast<double>(squares) / cols + eps));
    return 1.0f / sqrtf(squares / static_cast<float>(cols) + eps);
}

#ifdef KW_KERNEL_rmsnorm_short
extern "C" __global__ void __launch_bounds__(TEAM* ROWS)
    rmsnorm_short(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ out, i64 x_stride,
                  i64 out_stride, int rows, int cols, float eps) {
    constexpr int SIZE = kw::Pack<T>::SIZE;
    __shared__ float scratch[32];
    const int lane = threadIdx.x % TEAM;
    const i64 row = static_cast<i64>(blockIdx.x) * ROWS + threadIdx.x / TEAM;
    const bool live = row < rows;  // no early exit: teams wider than a warp meet in a barrier
    const T* source = x + (live ? row * x_stride : 0);
    T* target = out + (live ? row * out_stride : 0);
    const kw::RowSplit<T> split(source, live ? cols : 0);
    const int scalar = split.scalar_column(lane);

    kw::Pack<T> raw[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
        if (lane + i * TEAM < split.packs) raw[i] = kw::load_pack(source + split.pack_column(lane + i * TEAM));
    const float extra = scalar >= 0 ? kw::to_float(source[scalar]) : 0.0f;

    float values[PACKS][SIZE], part[4] = {extra * extra};  // four short sums round less than a long one
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const bool present = lane + i * TEAM < split.packs;
#pragma unroll
        for (int j = 0; j < SIZE; ++j) {
            values[i][j] = present ? kw::to_float(raw[i].at[j]) : 0.0f;
            part[j % 4] = fmaf(values[i][j], values[i][j], part[j % 4]);
        }
    }
    const float squares = kw::team_reduce<kw::Sum, TEAM>((part[0] + part[1]) + (part[2] + part[3]), scratch);
    const float factor = inverse_root(squares, cols, eps);

    const bool aligned = kw::is_aligned16(target + split.head);
    const bool weight_aligned = kw::is_aligned16(weight + split.head);
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
        if (lane + i * TEAM < split.packs) {
            const int column = split.pack_column(lane + i * TEAM);
            const kw::Pack<T> scale = kw::load_reused(weight + column, weight_aligned);
#pragma unroll
            for (int j = 0; j < SIZE; ++j) values[i][j] *= factor * kw::to_float(scale.at[j]);
            kw::store_pack(target + column, values[i], aligned);
        }
    if (scalar >= 0) target[scalar] = kw::from_float<T>(extra * factor * kw::to_float(weight[scalar]));
}
#endif

#ifdef KW_KERNEL_rmsnorm_long
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rmsnorm_long(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ out, i64 x_stride,
                 i64 out_stride, int rows, int cols, float eps) {
    constexpr int SIZE = kw::Pack<T>::SIZE;
    __shared__ float scratch[32];
    const int lane = threadIdx.x;
    const T* const source = x + static_cast<i64>(blockIdx.x) * x_stride;
    T* const target = out + static_cast<i64>(blockIdx.x) * out_stride;
    const kw::RowSplit<T> split(source, cols);
    const int scalar = split.scalar_column(lane);
    const float extra = scalar >= 0 ? kw::to_float(source[scalar]) : 0.0f;

    float part[4] = {extra * extra};
#pragma unroll 4
    for (int pack = lane; pack < split.packs; pack += THREADS) {
        float values[SIZE];
        kw::unpack(kw::load_pack(source + split.pack_column(pack)), values);
#pragma unroll
        for (int j = 0; j < SIZE; ++j) part[j % 4] = fmaf(values[j], values[j], part[j % 4]);
    }
    const float squares = kw::team_reduce<kw::Sum, THREADS>((part[0] + part[1]) + (part[2] + part[3]), scratch);
    const float factor = inverse_root(squares, cols, eps);

    const bool aligned = kw::is_aligned16(target + split.head);
    const bool weight_aligned = kw::is_aligned16(weight + split.head);
#pragma unroll 2
    for (int pack = lane; pack < split.packs; pack += THREADS) {
        const int column = split.pack_column(pack);
        float values[SIZE], scale[SIZE];
        kw::unpack(kw::load_pack(source + column), values);
        kw::unpack(kw::load_reused(weight + column, weight_aligned), scale);
#pragma unroll
        for (int j = 0; j < SIZE; ++j) values[j] *= factor * scale[j];
        kw::store_pack(target + column, values, aligned);
    }
    if (scalar >= 0) target[scalar] = kw::from_float<T>(extra * factor * kw::to_float(weight[scalar]));
}
#endif

// Softmax over the last axis; every element is read from memory once unless a row exceeds shared memory.
// Short rows: a team of threads keeps its row in registers. Long rows: one block per multiprocessor walks over the
// rows, each thread copying its own share of the next ones into shared memory while it works on the current one.
// Still longer rows: two passes with a running maximum.
// Declared layout: last axis contiguous, any row stride, any alignment.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"PACKS": [2, 4, 1], "THREADS": [1024, 512], "STAGES": [2, 1]}

def plan(case, params, device):
    x, out = case.tensors.x, case.tensors.out
    rows, cols = case.axes.rows, case.axes.cols
    if cols > 1 and (x.strides[1] != 1 or out.strides[1] != 1):
        return {"unsupported": "the last axis must be contiguous"}
    args = ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), rows, cols]
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    packs = cols * case.itemsize // 16
    team = max(32, next_power_of_2(cdiv(packs, params.PACKS)))
    if team <= 1024:
        per_block = max(1, 256 // team)
        return {"launches": [{
            "kernel": "softmax_short", "grid": (cdiv(rows, per_block) if cols else 0,), "block": (team * per_block,),
            "args": args,
            "constants": {"T": name, "TEAM": team, "ROWS": per_block, "PACKS": max(1, cdiv(packs, team))},
        }]}
    threads = params.THREADS
    stage_bytes = cdiv(packs, threads) * threads * 16
    stages = min(params.STAGES, (device.shared_bytes - 1024) // stage_bytes)
    if stages >= 1:
        per_unit = max(1, min(2048 // threads, device.shared_bytes // (stages * stage_bytes + 2048)))
        return {"launches": [{
            "kernel": "softmax_long", "grid": (min(rows, device.units * per_unit),), "block": (threads,),
            "shared_bytes": stages * stage_bytes, "args": args,
            "constants": {"T": name, "THREADS": threads, "STAGES": stages},
        }]}
    return {"launches": [{
        "kernel": "softmax_streamed", "grid": (rows,), "block": (1024,), "args": args,
        "constants": {"T": name, "THREADS": 1024},
    }]}
*/

using kw::i64;

#ifdef KW_KERNEL_softmax_short
extern "C" __global__ void __launch_bounds__(TEAM* ROWS)
    softmax_short(const T* __restrict__ x, T* __restrict__ out, i64 x_stride, i64 out_stride, int rows, int cols) {
    constexpr int SIZE = kw::Pack<T>::SIZE;
    __shared__ float scratch[2][32];
    const int lane = threadIdx.x % TEAM;
    const i64 row = static_cast<i64>(blockIdx.x) * ROWS + threadIdx.x / TEAM;
    const bool live = row < rows;  // no early exit: teams wider than a warp meet in barriers
    const T* source = x + (live ? row * x_stride : 0);
    T* target = out + (live ? row * out_stride : 0);
    const kw::RowSplit<T> split(source, live ? cols : 0);
    const int scalar = split.scalar_column(lane);

    kw::Pack<T> raw[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
        if (lane + i * TEAM < split.packs) raw[i] = kw::load_pack(source + split.pack_column(lane + i * TEAM));
    const float extra = scalar >= 0 ? kw::to_float(source[scalar]) : -kw::infinity();

    float values[PACKS][SIZE], largest = extra;
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const bool present = lane + i * TEAM < split.packs;
#pragma unroll
        for (int j = 0; j < SIZE; ++j) {
            values[i][j] = present ? kw::to_float(raw[i].at[j]) : -kw::infinity();
            largest = fmaxf(largest, values[i][j]);
        }
    }
    largest = kw::team_reduce<kw::Max, TEAM>(largest, scratch[0]);

    const float extra_power = kw::power_below<T>(extra, largest);
    float total = extra_power;
#pragma unroll
    for (int i = 0; i < PACKS; ++i)
#pragma unroll
        for (int j = 0; j < SIZE; ++j) {
            values[i][j] = kw::power_below<T>(values[i][j], largest);
            total += values[i][j];
        }
    total = kw::team_reduce<kw::Sum, TEAM>(total, scratch[1]);

    const bool aligned = kw::is_aligned16(target + split.head);
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
#pragma unroll
        for (int j = 0; j < SIZE; ++j) values[i][j] = kw::quotient<T>(values[i][j], total);
        if (lane + i * TEAM < split.packs)
            kw::store_pack(target + split.pack_column(lane + i * TEAM), values[i], aligned);
    }
    if (scalar >= 0) target[scalar] = kw::from_float<T>(kw::quotient<T>(extra_power, total));
}
#endif

#ifdef KW_KERNEL_softmax_long
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    softmax_long(const T* __restrict__ x, T* __restrict__ out, i64 x_stride, i64 out_stride, int rows, int cols) {
    constexpr int SIZE = kw::Pack<T>::SIZE;
    __shared__ float scratch[2][32];
    const int lane = threadIdx.x;
    const int slots = (cols / SIZE + THREADS - 1) / THREADS;
    // Slot i of stage s is mine[(s * slots + i) * THREADS]: written and read by this thread alone, so a wait for its
    // own copies is all the synchronisation the data needs.
    kw::Pack<T>* const mine = reinterpret_cast<kw::Pack<T>*>(kw_shared) + lane;
    float edge[STAGES];

    const auto prefetch = [&](i64 row, int stage, float& scalar_value) {
        scalar_value = -kw::infinity();
        if (row < rows) {
            const T* source = x + row * x_stride;
            const kw::RowSplit<T> split(source, cols);
            kw::Pack<T>* slot = mine + stage * slots * THREADS;
            for (int pack = lane; pack < split.packs; pack += THREADS, slot += THREADS)
                kw::copy_async16(slot, source + split.pack_column(pack));
            const int scalar = split.scalar_column(lane);
            if (scalar >= 0) scalar_value = kw::to_float(source[scalar]);
        }
        kw::copy_async_commit();
    };

    i64 row = blockIdx.x;
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) prefetch(row + stage * gridDim.x, stage, edge[stage]);

    for (int stage = 0; row < rows; row += gridDim.x, stage = stage + 1 == STAGES ? 0 : stage + 1) {
        kw::copy_async_wait<STAGES - 1>();
        const kw::RowSplit<T> split(x + row * x_stride, cols);
        const kw::Pack<T>* const held = mine + stage * slots * THREADS;
        const float extra = edge[0];

        float largest = extra;
#pragma unroll 4
        for (int pack = lane, slot = 0; pack < split.packs; pack += THREADS, slot += THREADS) {
            float values[SIZE];
            kw::unpack(kw::load_shared_pack(held + slot), values);
#pragma unroll
            for (int j = 0; j < SIZE; ++j) largest = fmaxf(largest, values[j]);
        }
        largest = kw::team_reduce<kw::Max, THREADS>(largest, scratch[0]);

        const float extra_power = kw::power_below<T>(extra, largest);
        float total = extra_power;
#pragma unroll 4
        for (int pack = lane, slot = 0; pack < split.packs; pack += THREADS, slot += THREADS) {
            float values[SIZE];
            kw::unpack(kw::load_shared_pack(held + slot), values);
#pragma unroll
            for (int j = 0; j < SIZE; ++j) total += kw::power_below<T>(values[j], largest);
        }
        total = kw::team_reduce<kw::Sum, THREADS>(total, scratch[1]);

        T* const target = out + row * out_stride;
        const bool aligned = kw::is_aligned16(target + split.head);
#pragma unroll 4
        for (int pack = lane, slot = 0; pack < split.packs; pack += THREADS, slot += THREADS) {
            float values[SIZE];
            kw::unpack(kw::load_shared_pack(held + slot), values);
#pragma unroll
            for (int j = 0; j < SIZE; ++j) values[j] = kw::quotient<T>(kw::power_below<T>(values[j], largest), total);
            kw::store_pack(target + split.pack_column(pack), values, aligned);
        }
        const int scalar = split.scalar_column(lane);
        if (scalar >= 0) target[scalar] = kw::from_float<T>(kw::quotient<T>(extra_power, total));

#pragma unroll
        for (int i = 0; i + 1 < STAGES; ++i) edge[i] = edge[i + 1];
        prefetch(row + static_cast<i64>(STAGES) * gridDim.x, stage, edge[STAGES - 1]);
    }
}
#endif

#ifdef KW_KERNEL_softmax_streamed
extern "C" __global__ void __launch_bounds__(THREADS)
    softmax_streamed(const T* __restrict__ x, T* __restrict__ out, i64 x_stride, i64 out_stride, int rows, int cols) {
    constexpr int SIZE = kw::Pack<T>::SIZE;
    __shared__ float scratch[2][32];
    const int lane = threadIdx.x;
    const T* const source = x + static_cast<i64>(blockIdx.x) * x_stride;
    T* const target = out + static_cast<i64>(blockIdx.x) * out_stride;
    const kw::RowSplit<T> split(source, cols);
    const int scalar = split.scalar_column(lane);
    const float extra = scalar >= 0 ? kw::to_float(source[scalar]) : -kw::infinity();

    // A thread that saw only -inf keeps 0 as its base: -inf - 0 is -inf, -inf - -inf would be NaN.
    const auto base = [](float largest) { return largest == -kw::infinity() ? 0.0f : largest; };
    float largest = extra, total = kw::power_below<T>(extra, base(extra));
#pragma unroll 4
    for (int pack = lane; pack < split.packs; pack += THREADS) {
        float values[SIZE], seen = largest;
        kw::unpack(kw::load_pack(source + split.pack_column(pack)), values);
#pragma unroll
        for (int j = 0; j < SIZE; ++j) seen = fmaxf(seen, values[j]);
        total *= kw::exp_below<T>(largest, base(seen));
        largest = seen;
#pragma unroll
        for (int j = 0; j < SIZE; ++j) total += kw::power_below<T>(values[j], base(seen));
    }
    const float top = kw::team_reduce<kw::Max, THREADS>(largest, scratch[0]);
    total *= kw::exp_below<T>(largest, top);
    total = kw::team_reduce<kw::Sum, THREADS>(total, scratch[1]);

    const bool aligned = kw::is_aligned16(target + split.head);
#pragma unroll 4
    for (int pack = lane; pack < split.packs; pack += THREADS) {
        float values[SIZE];
        kw::unpack(kw::load_pack(source + split.pack_column(pack)), values);
#pragma unroll
        for (int j = 0; j < SIZE; ++j) values[j] = kw::quotient<T>(kw::power_below<T>(values[j], top), total);
        kw::store_pack(target + split.pack_column(pack), values, aligned);
    }
    if (scalar >= 0) target[scalar] = kw::from_float<T>(kw::quotient<T>(kw::power_below<T>(extra, top), total));
}
#endif

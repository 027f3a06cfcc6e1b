// Gated feed-forward layer in two launches of one kernel: hidden = silu(x gate^T) * (x up^T), then out = hidden down^T.
// In the first, rows of `gate` and `up` stand one above the other in a tile, so that one product yields both factors of
// an element in the same thread. `hidden` is a workspace in the type of the inputs.
// - swiglu_wgmma (Hopper, fp16 and bf16): persistent blocks, a ring fed by the copy engine, two consuming warpgroups.
// - swiglu_mma (sm_80 and up, fp16 and bf16): cp.async ring and mma.sync; any strides and alignment.
// - swiglu_ffma (fp32, strictly fp32 arithmetic): any strides.
// Declared layout: any strides.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"STAGES": [4, 3], "GROUP": [16, 8, 32], "WGMMA": [True, False]}

def plan(case, params, device):
    x, gate, up, down, out = (case.tensors.x, case.tensors.gate, case.tensors.up, case.tensors.down,
                              case.tensors.out)
    m, k, n = case.axes.m, case.axes.k, case.axes.n
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    pitch = cdiv(n, 8) * 8
    hidden = [{"name": "hidden", "nbytes": max(1, m * pitch * case.itemsize)}]
    # What the copy engine can address: rows of contiguous elements, everything a multiple of 16 bytes.
    rows = x.offset | x.strides[0] | gate.offset | gate.strides[0] | up.offset | up.strides[0]
    rows = rows | down.offset | down.strides[0] | out.offset | out.strides[0]
    columns = max(x.strides[1], gate.strides[1], up.strides[1], down.strides[1], out.strides[1])
    positive = min(x.strides[0], gate.strides[0], up.strides[0], down.strides[0], out.strides[0], columns) > 0
    dense = columns == 1 and positive and rows % 8 == 0
    if params.WGMMA and device.arch == "sm_90" and case.itemsize == 2 and dense and m * n * k > 0:
        shared = 1024 + params.STAGES * 49152 + 32768
        first = min(device.units, cdiv(m, 128) * cdiv(n, 128))
        second = min(device.units, cdiv(m, 128) * cdiv(k, 256))
        return {
            "workspaces": hidden,
            "tensor_maps": [
                {"name": "map_x", "buffer": "x", "dtype": case.dtype, "shape": (k, m),
                 "strides_bytes": (2 * x.strides[0],), "box": (64, 128), "swizzle": "128b"},
                {"name": "map_gate", "buffer": "gate", "dtype": case.dtype, "shape": (k, n),
                 "strides_bytes": (2 * gate.strides[0],), "box": (64, 128), "swizzle": "128b"},
                {"name": "map_up", "buffer": "up", "dtype": case.dtype, "shape": (k, n),
                 "strides_bytes": (2 * up.strides[0],), "box": (64, 128), "swizzle": "128b"},
                {"name": "map_hidden", "buffer": "hidden", "dtype": case.dtype, "shape": (n, m),
                 "strides_bytes": (2 * pitch,), "box": (64, 128), "swizzle": "128b"},
                {"name": "map_hidden_out", "buffer": "hidden", "dtype": case.dtype, "shape": (n, m),
                 "strides_bytes": (2 * pitch,), "box": (64, 64), "swizzle": "128b"},
                {"name": "map_down", "buffer": "down", "dtype": case.dtype, "shape": (n, k),
                 "strides_bytes": (2 * down.strides[0],), "box": (64, 128), "swizzle": "128b"},
                {"name": "map_out", "buffer": "out", "dtype": case.dtype, "shape": (k, m),
                 "strides_bytes": (2 * out.strides[0],), "box": (64, 64), "swizzle": "128b"},
            ],
            "launches": [
                {"kernel": "swiglu_wgmma", "grid": (first,), "block": (384,), "shared_bytes": shared,
                 "args": ["map_x", "map_gate", "map_up", "map_hidden_out", m, n, k],
                 "constants": {"T": name, "IS_GATED": True, "STAGES": params.STAGES, "GROUP": params.GROUP}},
                {"kernel": "swiglu_wgmma", "grid": (second,), "block": (384,), "shared_bytes": shared,
                 "args": ["map_hidden", "map_down", "map_down", "map_out", m, k, n],
                 "constants": {"T": name, "IS_GATED": False, "STAGES": params.STAGES, "GROUP": params.GROUP}},
            ],
        }
    kernel = "swiglu_mma" if case.itemsize == 2 else "swiglu_ffma"
    shared = 81920 if case.itemsize == 2 else 0
    return {
        "workspaces": hidden,
        "launches": [
            {"kernel": kernel, "grid": (cdiv(n, 64), cdiv(m, 128)), "block": (256,), "shared_bytes": shared,
             "args": ["x", "gate", "up", "hidden", ("i64", x.strides[0]), ("i64", x.strides[1]),
                      ("i64", gate.strides[0]), ("i64", gate.strides[1]), ("i64", up.strides[0]),
                      ("i64", up.strides[1]), ("i64", pitch), ("i64", 1), m, n, k],
             "constants": {"T": name, "IS_GATED": True}},
            {"kernel": kernel, "grid": (cdiv(k, 128), cdiv(m, 128)), "block": (256,), "shared_bytes": shared,
             "args": ["hidden", "down", "down", "out", ("i64", pitch), ("i64", 1),
                      ("i64", down.strides[0]), ("i64", down.strides[1]), ("i64", down.strides[0]),
                      ("i64", down.strides[1]), ("i64", out.strides[0]), ("i64", out.strides[1]), m, k, n],
             "constants": {"T": name, "IS_GATED": False}},
        ],
    }
*/

using kw::i64;
using kw::u32;
using kw::u64;

// x * sigmoid(x)
KW_DEVICE float silu(float x) {
    if constexpr (sizeof(T) == 4) return x / (1.0f + expf(-x));
    return x * kw::reciprocal(1.0f + kw::exp2_fast(-kw::LOG2_E * x));
}

#if defined(KW_KERNEL_swiglu_wgmma) && defined(KW_HAS_WGMMA)
constexpr int BM = 128, BN = 256, BK = 64, CONSUMERS = 2;
constexpr int OUT_COLUMNS = IS_GATED ? BN / 2 : BN;
constexpr int A_BYTES = BM * BK * 2, HALF_B_BYTES = BN / 2 * BK * 2, STAGE_BYTES = A_BYTES + 2 * HALF_B_BYTES;
constexpr int BOX_BYTES = 64 * 64 * 2;  // a box of the output: 64 rows of 128 bytes

// out[m, n] = a[m, k] b^T, each tile of b half from `map_first` and half from `map_second`:
// neighbouring rows of one matrix or, gated, the same rows of two.
extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
    swiglu_wgmma(const __grid_constant__ kw_tensor_map map_a, const __grid_constant__ kw_tensor_map map_first,
                 const __grid_constant__ kw_tensor_map map_second, const __grid_constant__ kw_tensor_map map_out, int m,
                 int n, int k) {
    __shared__ u64 full[STAGES], empty[STAGES];
    unsigned char* const ring = kw::align_shared();
    unsigned char* const staging = ring + STAGES * STAGE_BYTES;
    const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    const int row_tiles = (m + BM - 1) / BM, column_tiles = (n + OUT_COLUMNS - 1) / OUT_COLUMNS;
    const int steps = (k + BK - 1) / BK;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            kw::barrier_init(&full[i], 1);
            kw::barrier_init(&empty[i], 4 * CONSUMERS);  // one arrival per consuming warp
        }
        kw::barrier_init_fence();
    }
    __syncthreads();

    // GROUP rows of tiles are finished column by column: tiles in flight share rows of a and columns of b in L2.
    const auto locate = [&](int tile, int& row, int& column) {
        const int band = GROUP * column_tiles, first = tile / band * GROUP;
        const int height = min(GROUP, row_tiles - first);
        row = (first + tile % band % height) * BM;
        column = tile % band / height * OUT_COLUMNS;
    };

    if (warpgroup == 0) {
        kw::registers_give_up<40>();
        if (threadIdx.x == 0) {
            kw::prefetch_tensor_map(&map_a);
            kw::prefetch_tensor_map(&map_first);
            kw::prefetch_tensor_map(&map_second);
            kw::RingPosition<STAGES> at;
            for (int tile = blockIdx.x; tile < row_tiles * column_tiles; tile += gridDim.x) {
                int row, column;
                locate(tile, row, column);
                for (int step = 0; step < steps; ++step, at.advance()) {
                    unsigned char* const stage = ring + at.stage * STAGE_BYTES;
                    kw::barrier_wait(&empty[at.stage], at.phase ^ 1);
                    kw::barrier_arrive_expect(&full[at.stage], STAGE_BYTES);
                    kw::tma_load(stage, &map_a, &full[at.stage], step * BK, row);
                    kw::tma_load(stage + A_BYTES, &map_first, &full[at.stage], step * BK, column);
                    kw::tma_load(stage + A_BYTES + HALF_B_BYTES, &map_second, &full[at.stage], step * BK,
                                 IS_GATED ? column : column + BN / 2);
                }
            }
        }
    } else {
        kw::registers_take<232>();
        const int consumer = warpgroup - 1, warp = thread / 32, lane = thread % 32;
        float sum[BN / 2];
        kw::RingPosition<STAGES> at;
        for (int tile = blockIdx.x; tile < row_tiles * column_tiles; tile += gridDim.x) {
            int row, column, previous = 0;
            locate(tile, row, column);
            for (int step = 0; step < steps; ++step, at.advance()) {
                const unsigned char* const stage = ring + at.stage * STAGE_BYTES;
                const u64 a = kw::descriptor_k_major(stage + consumer * 64 * 128);
                const u64 b = kw::descriptor_k_major(stage + A_BYTES);
                kw::barrier_wait(&full[at.stage], at.phase);
                kw::wgmma_fence();
#pragma unroll
                for (int i = 0; i < BK / 16; ++i) kw::wgmma<T, 0>(sum, a + 2 * i, b + 2 * i, i > 0 || step > 0);
                kw::wgmma_commit();
                // This step's products run on; those of the step before are done and their stage is free again.
                kw::wgmma_wait<1>();
                if (step > 0 && lane == 0) kw::barrier_arrive(&empty[previous]);
                previous = at.stage;
            }
            kw::wgmma_wait<0>();
            kw::pin(sum);
            if (lane == 0) kw::barrier_arrive(&empty[previous]);

            // 64 columns at a time through two buffers per warpgroup; the copy engine leaves out what is out of bounds.
#pragma unroll
            for (int part = 0; part < OUT_COLUMNS / 64; ++part) {
                unsigned char* const buffer = staging + (consumer * 2 + part % 2) * BOX_BYTES;
                if (thread == 0) kw::tma_store_wait_read<1>();
                kw::named_barrier(1 + consumer, 128);
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    float values[4];
#pragma unroll
                    for (int q = 0; q < 4; ++q) {
                        const int i = (part * 8 + j) * 4 + q;
                        values[q] = IS_GATED ? silu(sum[i]) * sum[(i + BN / 4) % (BN / 2)] : sum[i];
                    }
                    const int upper = warp * 16 + lane / 4, within = lane % 4 * 4;
                    *reinterpret_cast<u32*>(buffer + kw::swizzle128(upper, j) + within) =
                        kw::pack_pair<T>(values[0], values[1]);
                    *reinterpret_cast<u32*>(buffer + kw::swizzle128(upper + 8, j) + within) =
                        kw::pack_pair<T>(values[2], values[3]);
                }
                kw::async_fence();
                kw::named_barrier(1 + consumer, 128);
                if (thread == 0) {
                    kw::tma_store(&map_out, buffer, column + part * 64, row + consumer * 64);
                    kw::tma_store_commit();
                }
            }
        }
        if (thread == 0) kw::tma_store_wait_all();
    }
}
#endif

#ifdef KW_KERNEL_swiglu_mma
constexpr int BM = 128, BN = 128, BK = 32, THREADS = 256, STAGES = 4;
constexpr int OUT_COLUMNS = IS_GATED ? BN / 2 : BN;
constexpr int PITCH = BK + 8;  // 16 bytes more per row: ldmatrix then touches every bank once

// Brings ROWS x BK elements to shared memory, zeros beyond `rows` and `cols`.
template <int ROWS>
KW_DEVICE void load_tile(T* tile, const T* source, i64 row_stride, i64 column_stride, int rows, int cols) {
    const bool packed = column_stride == 1 && row_stride % 8 == 0 && kw::is_aligned16(source);
#pragma unroll
    for (int i = 0; i < ROWS * BK / 8 / THREADS; ++i) {
        const int chunk = threadIdx.x + i * THREADS, row = chunk / (BK / 8), column = chunk % (BK / 8) * 8;
        T* const to = tile + row * PITCH + column;
        const T* const from = source + row * row_stride + column * column_stride;
        if (packed && row < rows && column + 8 <= cols) {
            kw::copy_async16(to, from);
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j)
                to[j] = row < rows && column + j < cols ? from[j * column_stride] : kw::from_float<T>(0.0f);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    swiglu_mma(const T* __restrict__ a, const T* __restrict__ first, const T* __restrict__ second, T* __restrict__ out,
               i64 a_row, i64 a_column, i64 first_row, i64 first_column, i64 second_row, i64 second_column, i64 out_row,
               i64 out_column, int m, int n, int k) {
    T* const tiles = reinterpret_cast<T*>(kw_shared);
    constexpr int STAGE = (BM + BN) * PITCH;
    const int row = blockIdx.y * BM, column = blockIdx.x * OUT_COLUMNS, steps = (k + BK - 1) / BK;
    const int column_of_second = IS_GATED ? column : column + BN / 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp / 4 * 64;
    // Where in the tile the two 16-column strips of a warp start.
    const int strip[2] = {IS_GATED ? warp % 4 * 16 : warp % 4 * 32, IS_GATED ? 64 + warp % 4 * 16 : warp % 4 * 32 + 16};

    const auto load = [&](int step) {
        if (step < steps) {
            T* const tile = tiles + step % STAGES * STAGE;
            const i64 done = static_cast<i64>(step) * BK;
            load_tile<BM>(tile, a + row * a_row + done * a_column, a_row, a_column, m - row, k - step * BK);
            load_tile<BN / 2>(tile + BM * PITCH, first + column * first_row + done * first_column, first_row,
                              first_column, n - column, k - step * BK);
            load_tile<BN / 2>(tile + (BM + BN / 2) * PITCH,
                              second + column_of_second * second_row + done * second_column, second_row, second_column,
                              n - column_of_second, k - step * BK);
        }
        kw::copy_async_commit();
    };
    for (int step = 0; step < STAGES - 1; ++step) load(step);

    float sum[4][4][4] = {};
    for (int step = 0; step < steps; ++step) {
        kw::copy_async_wait<STAGES - 2>();
        __syncthreads();
        load(step + STAGES - 1);  // into the stage that everybody left before the barrier
        const T* const tile_a = tiles + step % STAGES * STAGE;
        const T* const tile_b = tile_a + BM * PITCH;
#pragma unroll
        for (int inner = 0; inner < BK; inner += 16) {
            u32 left[4][4], right[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                kw::load_matrix_x4(left[i], tile_a + (warp_row + i * 16 + lane % 16) * PITCH + inner + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                kw::load_matrix_x4(right[j], tile_b + (strip[j] + lane % 8 + lane / 16 * 8) * PITCH + inner +
                                                 lane / 8 % 2 * 8);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    kw::mma_m16n8k16<T>(sum[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
        }
    }

    const bool paired = out_column == 1 && out_row % 2 == 0 && reinterpret_cast<u64>(out) % 4 == 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int r = row + warp_row + i * 8 + lane / 4;
        if (r >= m) break;
#pragma unroll
        for (int j = 0; j < (IS_GATED ? 2 : 4); ++j) {
            const int c = column + strip[j / 2] + j % 2 * 8 + lane % 4 * 2;
            float u = sum[i / 2][j][i % 2 * 2], v = sum[i / 2][j][i % 2 * 2 + 1];
            if (IS_GATED) {
                u = silu(u) * sum[i / 2][(j + 2) % 4][i % 2 * 2];
                v = silu(v) * sum[i / 2][(j + 2) % 4][i % 2 * 2 + 1];
            }
            T* const to = out + r * out_row + c * out_column;
            if (paired && c + 1 < n) {
                *reinterpret_cast<u32*>(to) = kw::pack_pair<T>(u, v);
            } else {
                if (c < n) to[0] = kw::from_float<T>(u);
                if (c + 1 < n) to[out_column] = kw::from_float<T>(v);
            }
        }
    }
}
#endif

#ifdef KW_KERNEL_swiglu_ffma
constexpr int BM = 128, BN = 128, BK = 8, THREADS = 256, PITCH = 132, FLUSH = 16;
constexpr int OUT_COLUMNS = IS_GATED ? BN / 2 : BN;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    swiglu_ffma(const float* __restrict__ a, const float* __restrict__ first, const float* __restrict__ second,
                float* __restrict__ out, i64 a_row, i64 a_column, i64 first_row, i64 first_column, i64 second_row,
                i64 second_column, i64 out_row, i64 out_column, int m, int n, int k) {
    __shared__ __align__(16) float left[2][BK][PITCH], right[2][BK][PITCH];  // both with k as the row
    const int row = blockIdx.y * BM, column = blockIdx.x * OUT_COLUMNS, steps = (k + BK - 1) / BK;
    const int column_of_second = IS_GATED ? column : column + BN / 2;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;

    // Of each tile a thread brings one k of four rows 32 apart: of a, of the first and of the second half of b.
    const int own_k = threadIdx.x % BK, own = threadIdx.x / BK;
    const float* from_a = a + (row + own) * a_row + own_k * a_column;
    const float* from_first = first + (column + own) * first_row + own_k * first_column;
    const float* from_second = second + (column_of_second + own) * second_row + own_k * second_column;
    float next_a[4], next_b[4];
    const auto fetch = [&](int step) {
        const bool inside = step * BK + own_k < k;
#pragma unroll
        for (int i = 0; i < 4; ++i) next_a[i] = inside && row + own + i * 32 < m ? from_a[i * 32 * a_row] : 0.0f;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            next_b[i] = inside && column + own + i * 32 < n ? from_first[i * 32 * first_row] : 0.0f;
            next_b[i + 2] =
                inside && column_of_second + own + i * 32 < n ? from_second[i * 32 * second_row] : 0.0f;
        }
        from_a += BK * a_column;
        from_first += BK * first_column;
        from_second += BK * second_column;
    };
    const auto put = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            left[buffer][own_k][own + i * 32] = next_a[i];
            right[buffer][own_k][own + i * 32] = next_b[i];
        }
    };

    // Sums of FLUSH steps are added up apart: over a long k, rounding then grows with the root of the pieces' length.
    float sum[8][8] = {}, total[8][8] = {};
    if (steps > 0) {
        fetch(0);
        put(0);
    }
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
        if (step + 1 < steps) fetch(step + 1);
#pragma unroll
        for (int inner = 0; inner < BK; ++inner) {
            // Rows and columns 4 y .. + 3 and 64 + 4 y .. + 3: gated, the second four are `up` of the first four.
            float u[8], v[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                u[i] = left[step % 2][inner][i / 4 * 64 + y * 4 + i % 4];
                v[i] = right[step % 2][inner][i / 4 * 64 + x * 4 + i % 4];
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) sum[i][j] = fmaf(u[i], v[j], sum[i][j]);
        }
        if (step + 1 < steps) put((step + 1) % 2);
        __syncthreads();
        if (step % FLUSH == FLUSH - 1 || step + 1 == steps) {
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    total[i][j] += sum[i][j];
                    sum[i][j] = 0.0f;
                }
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < (IS_GATED ? 4 : 8); ++j) {
            const int r = row + i / 4 * 64 + y * 4 + i % 4, c = column + j / 4 * 64 + x * 4 + j % 4;
            const float value = IS_GATED ? silu(total[i][j]) * total[i][(j + 4) % 8] : total[i][j];
            if (r < m && c < n) out[r * out_row + c * out_column] = value;
        }
}
#endif

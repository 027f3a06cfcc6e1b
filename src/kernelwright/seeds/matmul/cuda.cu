// Matrix product, out = a @ b, with three kernels:
// - matmul_wgmma (Hopper, fp16 and bf16): persistent blocks; one warp feeds a ring of tiles through the bulk copy
//   engine, two warpgroups multiply them (64 x BN each) and store through shared memory while the next tile loads.
// - matmul_mma (sm_80 and up, fp16 and bf16): 128 x 128 tiles, cp.async ring, mma.sync; any strides and alignment.
// - matmul_ffma (fp32, strictly fp32 arithmetic): 128 x 128 tiles, 8 x 8 products per thread; any strides.
// Declared layout: any strides.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"BN": [256, 128], "STAGES": [4, 3], "GROUP": [16, 8, 32], "WGMMA": [True, False]}

def plan(case, params, device):
    a, b, out = case.tensors.a, case.tensors.b, case.tensors.out
    m, n, k = case.axes.m, case.axes.n, case.axes.k
    strides = [("i64", a.strides[0]), ("i64", a.strides[1]), ("i64", b.strides[0]), ("i64", b.strides[1]),
               ("i64", out.strides[0]), ("i64", out.strides[1])]
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    # What the copy engine can address: rows of contiguous elements, everything a multiple of 16 bytes.
    rows = a.offset | a.strides[0] | b.offset | b.strides[0] | out.offset | out.strides[0]
    dense = a.strides[1] == 1 and b.strides[1] == 1 and out.strides[1] == 1 and rows % 8 == 0
    positive = min(a.strides[0], b.strides[0], out.strides[0]) > 0
    if params.WGMMA and device.arch == "sm_90" and case.itemsize == 2 and dense and positive and m * n * k > 0:
        bn = params.BN if cdiv(m, 128) * cdiv(n, 256) * 2 >= device.units else 128
        tiles = cdiv(m, 128) * cdiv(n, bn)
        return {
            "tensor_maps": [
                {"name": "map_a", "buffer": "a", "dtype": case.dtype, "shape": (k, m),
                 "strides_bytes": (2 * a.strides[0],), "box": (64, 128), "swizzle": "128b"},
                {"name": "map_b", "buffer": "b", "dtype": case.dtype, "shape": (n, k),
                 "strides_bytes": (2 * b.strides[0],), "box": (64, 64), "swizzle": "128b"},
                {"name": "map_out", "buffer": "out", "dtype": case.dtype, "shape": (n, m),
                 "strides_bytes": (2 * out.strides[0],), "box": (64, 64), "swizzle": "128b"},
            ],
            "launches": [{
                "kernel": "matmul_wgmma", "grid": (min(device.units, tiles),), "block": (384,),
                "shared_bytes": 1024 + params.STAGES * (16384 + 128 * bn) + 32768,
                "args": ["map_a", "map_b", "map_out", m, n, k],
                "constants": {"T": name, "BN": bn, "STAGES": params.STAGES, "GROUP": params.GROUP},
            }],
        }
    if case.itemsize == 2:
        return {"launches": [{
            "kernel": "matmul_mma", "grid": (cdiv(n, 128), cdiv(m, 128)), "block": (256,), "shared_bytes": 75776,
            "args": ["a", "b", "out", strides[0], strides[1], strides[2], strides[3], strides[4], strides[5], m, n, k],
            "constants": {"T": name},
        }]}
    return {"launches": [{
        "kernel": "matmul_ffma", "grid": (cdiv(n, 128), cdiv(m, 128)), "block": (256,),
        "args": ["a", "b", "out", strides[0], strides[1], strides[2], strides[3], strides[4], strides[5], m, n, k],
    }]}
*/

using kw::i64;
using kw::u32;
using kw::u64;

#if defined(KW_KERNEL_matmul_wgmma) && defined(KW_HAS_WGMMA)
constexpr int BM = 128, BK = 64, CONSUMERS = 2;
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BK * BN * 2, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int BOX_BYTES = 64 * 64 * 2;  // a box of b or out: 64 rows of 128 bytes

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
    matmul_wgmma(const __grid_constant__ kw_tensor_map map_a, const __grid_constant__ kw_tensor_map map_b,
                 const __grid_constant__ kw_tensor_map map_out, int m, int n, int k) {
    __shared__ u64 full[STAGES], empty[STAGES];
    unsigned char* const ring = kw::align_shared();
    unsigned char* const staging = ring + STAGES * STAGE_BYTES;
    const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
    const int row_tiles = (m + BM - 1) / BM, column_tiles = (n + BN - 1) / BN, steps = (k + BK - 1) / BK;

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
        column = tile % band / height * BN;
    };

    if (warpgroup == 0) {
        kw::registers_give_up<40>();
        if (threadIdx.x == 0) {
            kw::prefetch_tensor_map(&map_a);
            kw::prefetch_tensor_map(&map_b);
            kw::RingPosition<STAGES> at;
            for (int tile = blockIdx.x; tile < row_tiles * column_tiles; tile += gridDim.x) {
                int row, column;
                locate(tile, row, column);
                for (int step = 0; step < steps; ++step, at.advance()) {
                    unsigned char* const stage = ring + at.stage * STAGE_BYTES;
                    kw::barrier_wait(&empty[at.stage], at.phase ^ 1);
                    kw::barrier_arrive_expect(&full[at.stage], STAGE_BYTES);
                    kw::tma_load(stage, &map_a, &full[at.stage], step * BK, row);
#pragma unroll
                    for (int i = 0; i < BN / 64; ++i)
                        kw::tma_load(stage + A_BYTES + i * BOX_BYTES, &map_b, &full[at.stage], column + i * 64,
                                     step * BK);
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
                const u64 b = kw::descriptor_mn_major(stage + A_BYTES, BOX_BYTES);
                kw::barrier_wait(&full[at.stage], at.phase);
                kw::wgmma_fence();
#pragma unroll
                for (int i = 0; i < BK / 16; ++i) kw::wgmma<T, 1>(sum, a + 2 * i, b + 128 * i, i > 0 || step > 0);
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
            for (int part = 0; part < BN / 64; ++part) {
                unsigned char* const buffer = staging + (consumer * 2 + part % 2) * BOX_BYTES;
                if (thread == 0) kw::tma_store_wait_read<1>();
                kw::named_barrier(1 + consumer, 128);
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const float* const at_column = &sum[(part * 8 + j) * 4];
                    const int upper = warp * 16 + lane / 4, within = lane % 4 * 4;
                    *reinterpret_cast<u32*>(buffer + kw::swizzle128(upper, j) + within) =
                        kw::pack_pair<T>(at_column[0], at_column[1]);
                    *reinterpret_cast<u32*>(buffer + kw::swizzle128(upper + 8, j) + within) =
                        kw::pack_pair<T>(at_column[2], at_column[3]);
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

#ifdef KW_KERNEL_matmul_mma
constexpr int BM = 128, BN = 128, BK = 32, THREADS = 256, STAGES = 4;
constexpr int A_PITCH = BK + 8, B_PITCH = BN + 8;  // 16 bytes more per row: ldmatrix then touches every bank once

// Brings ROWS x COLS elements to shared memory, zeros beyond `rows` and `cols`.
template <int ROWS, int COLS, int PITCH>
KW_DEVICE void load_tile(T* tile, const T* source, i64 row_stride, i64 column_stride, int rows, int cols, bool packed) {
#pragma unroll
    for (int i = 0; i < ROWS * COLS / 8 / THREADS; ++i) {
        const int chunk = threadIdx.x + i * THREADS, row = chunk / (COLS / 8), column = chunk % (COLS / 8) * 8;
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
    matmul_mma(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ out, i64 a_row, i64 a_column,
               i64 b_row, i64 b_column, i64 out_row, i64 out_column, int m, int n, int k) {
    T* const tiles = reinterpret_cast<T*>(kw_shared);
    constexpr int STAGE = BM * A_PITCH + BK * B_PITCH;
    const int row = blockIdx.y * BM, column = blockIdx.x * BN, steps = (k + BK - 1) / BK;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    const bool a_packed = a_column == 1 && a_row % 8 == 0 && kw::is_aligned16(a);
    const bool b_packed = b_column == 1 && b_row % 8 == 0 && kw::is_aligned16(b);

    const auto load = [&](int step) {
        if (step < steps) {
            T* const tile = tiles + step % STAGES * STAGE;
            load_tile<BM, BK, A_PITCH>(tile, a + row * a_row + step * BK * a_column, a_row, a_column, m - row,
                                       k - step * BK, a_packed);
            load_tile<BK, BN, B_PITCH>(tile + BM * A_PITCH, b + step * BK * b_row + column * b_column, b_row, b_column,
                                       k - step * BK, n - column, b_packed);
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
        const T* const tile_b = tile_a + BM * A_PITCH;
#pragma unroll
        for (int inner = 0; inner < BK; inner += 16) {
            u32 left[4][4], right[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                kw::load_matrix_x4(left[i], tile_a + (warp_row + i * 16 + lane % 16) * A_PITCH + inner + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < 2; ++j)
                kw::load_matrix_x4_transposed(
                    right[j], tile_b + (inner + lane % 16) * B_PITCH + warp_column + j * 16 + lane / 16 * 8);
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
        for (int j = 0; j < 4; ++j) {
            const int c = column + warp_column + j * 8 + lane % 4 * 2;
            const float u = sum[i / 2][j][i % 2 * 2], v = sum[i / 2][j][i % 2 * 2 + 1];
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

#ifdef KW_KERNEL_matmul_ffma
constexpr int BM = 128, BN = 128, BK = 8, THREADS = 256, PITCH = 132, FLUSH = 16;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    matmul_ffma(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out, i64 a_row,
                i64 a_column, i64 b_row, i64 b_column, i64 out_row, i64 out_column, int m, int n, int k) {
    __shared__ __align__(16) float left[2][BK][PITCH], right[2][BK][PITCH];  // both with k as the row
    const int row = blockIdx.y * BM, column = blockIdx.x * BN, steps = (k + BK - 1) / BK;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;

    // Of each tile a thread brings four elements: of a, one k of rows 32 apart; of b, one column of ks 2 apart.
    const int ak = threadIdx.x % BK, ar = threadIdx.x / BK, bc = threadIdx.x % BN, bk = threadIdx.x / BN;
    const float* from_a = a + (row + ar) * a_row + ak * a_column;
    const float* from_b = b + bk * b_row + (column + bc) * b_column;
    float next_a[4], next_b[4];
    const auto fetch = [&](int step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool inside_a = row + ar + i * 32 < m && step * BK + ak < k;
            const bool inside_b = column + bc < n && step * BK + bk + i * 2 < k;
            next_a[i] = inside_a ? from_a[i * 32 * a_row] : 0.0f;
            next_b[i] = inside_b ? from_b[i * 2 * b_row] : 0.0f;
        }
        from_a += BK * a_column;
        from_b += BK * b_row;
    };
    const auto put = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            left[buffer][ak][ar + i * 32] = next_a[i];
            right[buffer][bk + i * 2][bc] = next_b[i];
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
            // Rows and columns 4 y .. + 3 and 64 + 4 y .. + 3: a warp then reads few distinct vectors.
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
        for (int j = 0; j < 8; ++j) {
            const int r = row + i / 4 * 64 + y * 4 + i % 4, c = column + j / 4 * 64 + x * 4 + j % 4;
            if (r < m && c < n) out[r * out_row + c * out_column] = total[i][j];
        }
}
#endif

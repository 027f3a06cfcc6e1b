// Scaled dot-product attention with a running maximum, causal or not, key heads shared by groups of query heads:
// - attention_wgmma (Hopper, fp16 and bf16, head_dim 64 and 128): one warp brings queries, keys and values through the
//   copy engine; each consuming warpgroup owns 64 queries and multiplies the scores of one block of keys while it still
//   works on the exponentials of the block before.
// - attention_mma (sm_80 and up, fp16 and bf16, head_dim up to 256): cp.async and mma.sync; any alignment.
// - attention_ffma (fp32, strictly fp32 arithmetic, head_dim up to 256).
// Declared layout: last axis contiguous, any other strides.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"WIDE": [True, False], "WGMMA": [True, False]}

def plan(case, params, device):
    q, k, v, out = case.tensors.q, case.tensors.k, case.tensors.v, case.tensors.out
    batch, heads, kv_heads = case.axes.batch, case.axes.heads, case.axes.kv_heads
    seq, kv_seq, head_dim = case.axes.seq, case.axes.kv_seq, case.axes.head_dim
    if q.strides[3] != 1 or k.strides[3] != 1 or v.strides[3] != 1 or out.strides[3] != 1:
        return {"unsupported": "the last axis must be contiguous"}
    if head_dim % 8 or head_dim > 256:
        return {"unsupported": "head_dim must be a multiple of 8 up to 256"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    planes, scale, causal = batch * heads, float(case.scalars.scale), case.scalars.causal
    shared_by = heads // kv_heads
    # What the copy engine can address: everything a multiple of 16 bytes.
    common = q.offset | q.strides[0] | q.strides[1] | q.strides[2] | k.offset | k.strides[0] | k.strides[1]
    common = common | k.strides[2] | v.offset | v.strides[0] | v.strides[1] | v.strides[2]
    common = common | out.offset | out.strides[0] | out.strides[1] | out.strides[2]
    least = min(q.strides[0], q.strides[1], q.strides[2], k.strides[0], k.strides[1], k.strides[2],
                v.strides[0], v.strides[1], v.strides[2])
    fits = common % 8 == 0 and least > 0 and head_dim in (64, 128) and scale > 0 and planes * seq * kv_seq > 0
    if params.WGMMA and device.arch == "sm_90" and case.itemsize == 2 and fits:
        consumers = 3 if params.WIDE and head_dim == 64 else 2
        # Heads whose keys and values share the L2 cache are worked on together.
        together = device.cache_bytes // 2 // max(1, 4 * kv_seq * head_dim // shared_by)
        return {
            "tensor_maps": [
                {"name": "map_q", "buffer": "q", "dtype": case.dtype, "shape": (head_dim, seq, heads, batch),
                 "strides_bytes": (2 * q.strides[2], 2 * q.strides[1], 2 * q.strides[0]),
                 "box": (64, 64, 1, 1), "swizzle": "128b"},
                {"name": "map_k", "buffer": "k", "dtype": case.dtype, "shape": (head_dim, kv_seq, kv_heads, batch),
                 "strides_bytes": (2 * k.strides[2], 2 * k.strides[1], 2 * k.strides[0]),
                 "box": (64, 128, 1, 1), "swizzle": "128b"},
                {"name": "map_v", "buffer": "v", "dtype": case.dtype, "shape": (head_dim, kv_seq, kv_heads, batch),
                 "strides_bytes": (2 * v.strides[2], 2 * v.strides[1], 2 * v.strides[0]),
                 "box": (64, 128, 1, 1), "swizzle": "128b"},
            ],
            "launches": [{
                "kernel": "attention_wgmma", "grid": (planes * cdiv(seq, 64 * consumers),),
                "block": (128 * (consumers + 1),),
                "shared_bytes": 1024 + 128 * head_dim * consumers + 1024 * head_dim,
                "args": ["map_q", "map_k", "map_v", "out", ("i64", out.strides[0]), ("i64", out.strides[1]),
                         ("i64", out.strides[2]), planes, heads, shared_by, seq, kv_seq,
                         max(1, min(planes, together)), scale * 1.4426950408889634],
                "constants": {"T": name, "HEAD_DIM": head_dim, "CONSUMERS": consumers, "IS_CAUSAL": causal},
            }],
        }
    args = ["q", "k", "v", "out", ("i64", q.strides[0]), ("i64", q.strides[1]), ("i64", q.strides[2]),
            ("i64", k.strides[0]), ("i64", k.strides[1]), ("i64", k.strides[2]),
            ("i64", v.strides[0]), ("i64", v.strides[1]), ("i64", v.strides[2]),
            ("i64", out.strides[0]), ("i64", out.strides[1]), ("i64", out.strides[2]),
            heads, shared_by, seq, kv_seq, scale]
    if case.itemsize == 2:
        keys = 64 if head_dim <= 128 else 32
        pitch = cdiv(head_dim, 16) * 16 + 8
        return {"launches": [{
            "kernel": "attention_mma", "grid": (planes, cdiv(seq, 64)), "block": (128,),
            "shared_bytes": 2 * pitch * (64 + 2 * keys), "args": args,
            "constants": {"T": name, "HEAD_DIM": head_dim, "KEYS": keys, "IS_CAUSAL": causal},
        }]}
    return {"launches": [{
        "kernel": "attention_ffma", "grid": (planes, cdiv(seq, 32)), "block": (128,),
        "shared_bytes": 4 * (96 * (head_dim + 4) + 32 * 36), "args": args,
        "constants": {"HEAD_DIM": head_dim, "IS_CAUSAL": causal},
    }]}
*/

using kw::i64;
using kw::u32;
using kw::u64;

#if defined(KW_KERNEL_attention_wgmma) && defined(KW_HAS_WGMMA)
constexpr int KEYS = 128, STAGES = 2, QUERIES = 64 * CONSUMERS, SLICES = HEAD_DIM / 64;
constexpr int Q_BOX = 64 * 128, KV_BOX = KEYS * 128;  // bytes of 64 dimensions of 64 queries, of 128 keys
constexpr int Q_BYTES = CONSUMERS * SLICES * Q_BOX, KV_BYTES = SLICES * KV_BOX;
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 24 : 32, CONSUMER_REGISTERS = CONSUMERS == 2 ? 240 : 160;

struct Barriers {
    u64 q, full_k[STAGES], empty_k[STAGES], full_v[STAGES], empty_v[STAGES];
};

// Two rows of a warpgroup's tile as one thread holds them: running maximum (unscaled) and its share of the sum.
struct Rows {
    float largest[2] = {-kw::infinity(), -kw::infinity()}, total[2] = {0.0f, 0.0f};

    // Turns scores into powers of two relative to the new maximum; `shrink` is what earlier sums must be multiplied by.
    KW_DEVICE void absorb(float (&scores)[KEYS / 2], float scale_log2, float (&shrink)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = largest[r];
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j)
                top = fmaxf(top, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
            top = kw::warp_reduce<kw::Max, 4>(top);
            // A row that has seen no key yet keeps 0 as its base: -inf - -inf would be NaN.
            const float base = top == -kw::infinity() ? 0.0f : top * scale_log2;
            shrink[r] = kw::exp2_fast(fmaf(largest[r], scale_log2, -base));
            largest[r] = top;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& score = scores[4 * j + 2 * r + e];
                    score = kw::exp2_fast(fmaf(score, scale_log2, -base));
                    sum += score;
                }
            total[r] = fmaf(total[r], shrink[r], sum);
        }
    }
};

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
    attention_wgmma(const __grid_constant__ kw_tensor_map map_q, const __grid_constant__ kw_tensor_map map_k,
                    const __grid_constant__ kw_tensor_map map_v, T* __restrict__ out, i64 out_batch, i64 out_head,
                    i64 out_seq, int planes, int heads, int shared_by, int seq, int kv_seq, int together,
                    float scale_log2) {
    __shared__ Barriers barriers;
    unsigned char* const tile_q = kw::align_shared();
    unsigned char* const tile_k = tile_q + Q_BYTES;
    unsigned char* const tile_v = tile_k + STAGES * KV_BYTES;
    const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;

    // `together` heads at a time, and among those, causal, the blocks with most keys first.
    const int query_blocks = (seq + QUERIES - 1) / QUERIES, per_group = together * query_blocks;
    const int first_plane = blockIdx.x / per_group * together, rest = blockIdx.x % per_group;
    const int width = min(together, planes - first_plane);
    const int plane = first_plane + rest % width;
    const int first_query = (IS_CAUSAL ? query_blocks - 1 - rest / width : rest / width) * QUERIES;
    const int batch = plane / heads, head = plane % heads, kv_head = head / shared_by;
    const int key_blocks = ((IS_CAUSAL ? min(kv_seq, first_query + QUERIES) : kv_seq) + KEYS - 1) / KEYS;

    if (threadIdx.x == 0) {
        kw::barrier_init(&barriers.q, 1);
        for (int i = 0; i < STAGES; ++i) {
            kw::barrier_init(&barriers.full_k[i], 1);
            kw::barrier_init(&barriers.full_v[i], 1);
            kw::barrier_init(&barriers.empty_k[i], 4 * CONSUMERS);  // one arrival per consuming warp
            kw::barrier_init(&barriers.empty_v[i], 4 * CONSUMERS);
        }
        kw::barrier_init_fence();
    }
    __syncthreads();

    if (warpgroup == 0) {
        kw::registers_give_up<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            const auto load = [&](const kw_tensor_map* map, unsigned char* tiles, u64* full, u64* empty, int block,
                                  kw::RingPosition<STAGES>& at) {
                kw::barrier_wait(&empty[at.stage], at.phase ^ 1);
                kw::barrier_arrive_expect(&full[at.stage], KV_BYTES);
#pragma unroll
                for (int i = 0; i < SLICES; ++i)
                    kw::tma_load(tiles + at.stage * KV_BYTES + i * KV_BOX, map, &full[at.stage], i * 64, block * KEYS,
                                 kv_head, batch);
                at.advance();
            };
            kw::barrier_arrive_expect(&barriers.q, Q_BYTES);
#pragma unroll
            for (int i = 0; i < CONSUMERS * SLICES; ++i)
                kw::tma_load(tile_q + i * Q_BOX, &map_q, &barriers.q, i % SLICES * 64, first_query + i / SLICES * 64,
                             head, batch);
            kw::RingPosition<STAGES> at_k, at_v;
            load(&map_k, tile_k, barriers.full_k, barriers.empty_k, key_blocks - 1, at_k);
            for (int block = key_blocks - 1; block >= 0; --block) {
                if (block > 0) load(&map_k, tile_k, barriers.full_k, barriers.empty_k, block - 1, at_k);
                load(&map_v, tile_v, barriers.full_v, barriers.empty_v, block, at_v);
            }
        }
    } else {
        kw::registers_take<CONSUMER_REGISTERS>();
        const int consumer = warpgroup - 1, warp = thread / 32, lane = thread % 32;
        const int upper = first_query + consumer * 64 + warp * 16 + lane / 4;  // this thread's rows: upper, upper + 8
        float sum[HEAD_DIM / 2] = {}, scores[KEYS / 2];
        u32 powers[KEYS / 16][4];
        Rows rows;
        kw::RingPosition<STAGES> at_k, at_v;

        const auto multiply_keys = [&] {
            const unsigned char* const q = tile_q + consumer * SLICES * Q_BOX;
            const unsigned char* const k = tile_k + at_k.stage * KV_BYTES;
            kw::barrier_wait(&barriers.full_k[at_k.stage], at_k.phase);
            kw::wgmma_fence();
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 16; ++i)
                kw::wgmma<T, 0>(scores, kw::descriptor_k_major(q + i / 4 * Q_BOX) + i % 4 * 2,
                                kw::descriptor_k_major(k + i / 4 * KV_BOX) + i % 4 * 2, i > 0);
            kw::wgmma_commit();
        };
        const auto multiply_values = [&] {
            const u64 v = kw::descriptor_mn_major(tile_v + at_v.stage * KV_BYTES, KV_BOX);
            kw::barrier_wait(&barriers.full_v[at_v.stage], at_v.phase);
            kw::wgmma_fence();
#pragma unroll
            for (int i = 0; i < KEYS / 16; ++i) kw::wgmma<T, 1>(sum, powers[i], v + 128 * i, 1);
            kw::wgmma_commit();
        };
        const auto release = [&](u64* empty, kw::RingPosition<STAGES>& at) {
            if (lane == 0) kw::barrier_arrive(&empty[at.stage]);
            at.advance();
        };
        const auto hide = [&](int block) {
            const bool is_last = (block + 1) * KEYS > kv_seq;
            if (!is_last && !(IS_CAUSAL && (block + 1) * KEYS - 1 > first_query + consumer * 64)) return;
#pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) {
                const int key = block * KEYS + i / 4 * 8 + lane % 4 * 2 + i % 2, query = upper + i % 4 / 2 * 8;
                if (key >= kv_seq || (IS_CAUSAL && key > query)) scores[i] = -kw::infinity();
            }
        };
        const auto round_powers = [&] {
#pragma unroll
            for (int i = 0; i < KEYS / 16; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    powers[i][j] = kw::pack_pair<T>(scores[8 * i + 2 * j], scores[8 * i + 2 * j + 1]);
        };

        float shrink[2];
        kw::barrier_wait(&barriers.q, 0);
        multiply_keys();
        kw::wgmma_wait<0>();
        kw::pin(scores);
        release(barriers.empty_k, at_k);
        hide(key_blocks - 1);
        rows.absorb(scores, scale_log2, shrink);
        round_powers();
        for (int block = key_blocks - 2; block >= 0; --block) {
            multiply_keys();
            multiply_values();  // of the block before: runs while the exponentials of this one are computed
            kw::wgmma_wait<1>();
            kw::pin(scores);
            release(barriers.empty_k, at_k);
            hide(block);
            rows.absorb(scores, scale_log2, shrink);
            // Waiting here for the next keys keeps the compiler from moving the exponentials behind the wait they fill.
            kw::pin(scores);
            if (block > 0) kw::barrier_wait(&barriers.full_k[at_k.stage], at_k.phase);
            kw::wgmma_wait<0>();
            kw::pin(sum);
            release(barriers.empty_v, at_v);
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; ++i) sum[i] *= shrink[i % 4 / 2];
            round_powers();
        }
        multiply_values();
        kw::wgmma_wait<0>();
        kw::pin(sum);

#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float factor = 1.0f / kw::warp_reduce<kw::Sum, 4>(rows.total[r]);
            const int query = upper + 8 * r;
            if (query < seq) {
                T* const to = out + batch * out_batch + head * out_head + query * out_seq + lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < HEAD_DIM / 8; ++j)
                    *reinterpret_cast<u32*>(to + 8 * j) =
                        kw::pack_pair<T>(sum[4 * j + 2 * r] * factor, sum[4 * j + 2 * r + 1] * factor);
            }
        }
    }
}
#endif

#ifdef KW_KERNEL_attention_mma
constexpr int QUERIES = 64, THREADS = 128;
constexpr int PADDED = (HEAD_DIM + 15) / 16 * 16, PITCH = PADDED + 8;  // the 16 bytes keep ldmatrix off shared banks

// Brings ROWS x PADDED elements to shared memory, zeros beyond `rows` and HEAD_DIM.
template <int ROWS> KW_DEVICE void load_tile(T* tile, const T* source, i64 stride, int rows) {
    const bool packed = stride % 8 == 0 && kw::is_aligned16(source);
    for (int chunk = threadIdx.x; chunk < ROWS * PADDED / 8; chunk += THREADS) {
        const int row = chunk / (PADDED / 8), column = chunk % (PADDED / 8) * 8;
        T* const to = tile + row * PITCH + column;
        const T* const from = source + row * stride + column;
        const bool inside = row < rows && column < HEAD_DIM;
        if (packed && inside) {
            kw::copy_async16(to, from);
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) to[j] = inside ? from[j] : kw::from_float<T>(0.0f);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_mma(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ out,
                  i64 q_batch, i64 q_head, i64 q_seq, i64 k_batch, i64 k_head, i64 k_seq, i64 v_batch, i64 v_head,
                  i64 v_seq, i64 out_batch, i64 out_head, i64 out_seq, int heads, int shared_by, int seq, int kv_seq,
                  float scale) {
    T* const tile_q = reinterpret_cast<T*>(kw_shared);
    T* const tile_k = tile_q + QUERIES * PITCH;
    T* const tile_v = tile_k + KEYS * PITCH;
    const int batch = blockIdx.x / heads, head = blockIdx.x % heads, kv_head = head / shared_by;
    // Causal, the blocks with most keys come first.
    const int first_query = (IS_CAUSAL ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * QUERIES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, upper = first_query + warp * 16 + lane / 4;
    const T* const source_k = k + batch * k_batch + kv_head * k_head;
    const T* const source_v = v + batch * v_batch + kv_head * v_head;
    const int key_blocks = ((IS_CAUSAL ? min(kv_seq, first_query + QUERIES) : kv_seq) + KEYS - 1) / KEYS;
    const float scale_log2 = scale * kw::LOG2_E;

    const auto load_k = [&](int block) {
        if (block < key_blocks)
            load_tile<KEYS>(tile_k, source_k + block * KEYS * k_seq, k_seq, kv_seq - block * KEYS);
        kw::copy_async_commit();
    };
    const auto load_v = [&](int block) {
        if (block < key_blocks)
            load_tile<KEYS>(tile_v, source_v + block * KEYS * v_seq, v_seq, kv_seq - block * KEYS);
        kw::copy_async_commit();
    };
    load_tile<QUERIES>(tile_q, q + batch * q_batch + head * q_head + first_query * q_seq, q_seq, seq - first_query);
    load_k(0);
    load_v(0);

    float sum[PADDED / 8][4] = {}, largest[2] = {-kw::infinity(), -kw::infinity()}, total[2] = {};
    for (int block = 0; block < key_blocks; ++block) {
        kw::copy_async_wait<1>();
        __syncthreads();
        float scores[KEYS / 8][4] = {};
#pragma unroll
        for (int inner = 0; inner < PADDED; inner += 16) {
            u32 left[4];
            kw::load_matrix_x4(left, tile_q + (warp * 16 + lane % 16) * PITCH + inner + lane / 16 * 8);
#pragma unroll
            for (int j = 0; j < KEYS / 16; ++j) {
                u32 right[4];
                kw::load_matrix_x4(right, tile_k + (j * 16 + lane % 8 + lane / 16 * 8) * PITCH + inner +
                                              lane / 8 % 2 * 8);
                kw::mma_m16n8k16<T>(scores[2 * j], left, right[0], right[1]);
                kw::mma_m16n8k16<T>(scores[2 * j + 1], left, right[2], right[3]);
            }
        }
        __syncthreads();
        load_k(block + 1);  // travels while the exponentials are computed

#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = largest[r];
#pragma unroll
            for (int j = 0; j < KEYS / 4; ++j) {
                const int key = block * KEYS + j / 2 * 8 + lane % 4 * 2 + j % 2;
                float& score = scores[j / 2][2 * r + j % 2];
                const bool hidden = key >= kv_seq || (IS_CAUSAL && key > upper + 8 * r);
                score = hidden ? -kw::infinity() : score * scale_log2;
                top = fmaxf(top, score);
            }
            top = kw::warp_reduce<kw::Max, 4>(top);
            // A row that has seen no key yet keeps 0 as its base: -inf - -inf would be NaN.
            const float base = top == -kw::infinity() ? 0.0f : top, shrink = kw::exp2_fast(largest[r] - base);
            largest[r] = top;
            float powers = 0.0f;
#pragma unroll
            for (int j = 0; j < KEYS / 4; ++j) {
                float& score = scores[j / 2][2 * r + j % 2];
                score = kw::exp2_fast(score - base);
                powers += score;
            }
            total[r] = fmaf(total[r], shrink, powers);
#pragma unroll
            for (int j = 0; j < PADDED / 8; ++j) {
                sum[j][2 * r] *= shrink;
                sum[j][2 * r + 1] *= shrink;
            }
        }

        kw::copy_async_wait<1>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) {
            const u32 left[4] = {kw::pack_pair<T>(scores[2 * i][0], scores[2 * i][1]),
                                 kw::pack_pair<T>(scores[2 * i][2], scores[2 * i][3]),
                                 kw::pack_pair<T>(scores[2 * i + 1][0], scores[2 * i + 1][1]),
                                 kw::pack_pair<T>(scores[2 * i + 1][2], scores[2 * i + 1][3])};
#pragma unroll
            for (int j = 0; j < PADDED / 16; ++j) {
                u32 right[4];
                kw::load_matrix_x4_transposed(right, tile_v + (i * 16 + lane % 16) * PITCH + j * 16 + lane / 16 * 8);
                kw::mma_m16n8k16<T>(sum[2 * j], left, right[0], right[1]);
                kw::mma_m16n8k16<T>(sum[2 * j + 1], left, right[2], right[3]);
            }
        }
        __syncthreads();
        load_v(block + 1);
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float factor = 1.0f / kw::warp_reduce<kw::Sum, 4>(total[r]);
        const int query = upper + 8 * r;
        T* const to = out + batch * out_batch + head * out_head + query * out_seq + lane % 4 * 2;
        const bool paired = reinterpret_cast<u64>(to) % 4 == 0;
#pragma unroll
        for (int j = 0; j < HEAD_DIM / 8; ++j) {
            const float a = sum[j][2 * r] * factor, b = sum[j][2 * r + 1] * factor;
            if (query < seq && paired) {
                *reinterpret_cast<u32*>(to + 8 * j) = kw::pack_pair<T>(a, b);
            } else if (query < seq) {
                to[8 * j] = kw::from_float<T>(a);
                to[8 * j + 1] = kw::from_float<T>(b);
            }
        }
    }
}
#endif

#ifdef KW_KERNEL_attention_ffma
constexpr int QUERIES = 32, KEYS = 32, THREADS = 128, PITCH = HEAD_DIM + 4, QUADS = HEAD_DIM / 4;
constexpr int OWN = (QUADS + 3) / 4;  // quads of the output a thread sums: its number modulo 4, + 4, + 8 ...

KW_DEVICE void load_tile(float* tile, const float* source, i64 stride, int rows) {
    for (int i = threadIdx.x; i < 32 * HEAD_DIM; i += THREADS) {
        const int row = i / HEAD_DIM, column = i % HEAD_DIM;
        tile[row * PITCH + column] = row < rows ? source[row * stride + column] : 0.0f;
    }
}

// Four threads share a query: each takes every fourth key for the scores and every fourth quad of the output.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    attention_ffma(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                   float* __restrict__ out, i64 q_batch, i64 q_head, i64 q_seq, i64 k_batch, i64 k_head, i64 k_seq,
                   i64 v_batch, i64 v_head, i64 v_seq, i64 out_batch, i64 out_head, i64 out_seq, int heads,
                   int shared_by, int seq, int kv_seq, float scale) {
    float* const tile_q = reinterpret_cast<float*>(kw_shared);
    float* const tile_k = tile_q + QUERIES * PITCH;
    float* const tile_v = tile_k + KEYS * PITCH;
    float* const powers = tile_v + KEYS * PITCH;  // 32 x 36
    const int batch = blockIdx.x / heads, head = blockIdx.x % heads, kv_head = head / shared_by;
    const int first_query = (IS_CAUSAL ? gridDim.y - 1 - blockIdx.y : blockIdx.y) * QUERIES;
    const int own_row = threadIdx.x / 4, part = threadIdx.x % 4, query = first_query + own_row;
    const int key_blocks = ((IS_CAUSAL ? min(kv_seq, first_query + QUERIES) : kv_seq) + KEYS - 1) / KEYS;
    const float* const source_k = k + batch * k_batch + kv_head * k_head;
    const float* const source_v = v + batch * v_batch + kv_head * v_head;

    load_tile(tile_q, q + batch * q_batch + head * q_head + first_query * q_seq, q_seq, seq - first_query);
    float4 sum[OWN] = {};
    float largest = -kw::infinity(), total = 0.0f;
    for (int block = 0; block < key_blocks; ++block) {
        __syncthreads();
        load_tile(tile_k, source_k + block * KEYS * k_seq, k_seq, kv_seq - block * KEYS);
        load_tile(tile_v, source_v + block * KEYS * v_seq, v_seq, kv_seq - block * KEYS);
        __syncthreads();

        float scores[8] = {};
#pragma unroll 4
        for (int quad = 0; quad < QUADS; ++quad) {
            const float4 a = *reinterpret_cast<const float4*>(tile_q + own_row * PITCH + 4 * quad);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float4 b = *reinterpret_cast<const float4*>(tile_k + (part + 4 * i) * PITCH + 4 * quad);
                scores[i] = fmaf(a.x, b.x, scores[i]);
                scores[i] = fmaf(a.y, b.y, scores[i]);
                scores[i] = fmaf(a.z, b.z, scores[i]);
                scores[i] = fmaf(a.w, b.w, scores[i]);
            }
        }
        float top = largest;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int key = block * KEYS + part + 4 * i;
            scores[i] = key >= kv_seq || (IS_CAUSAL && key > query) ? -kw::infinity() : scores[i] * scale;
            top = fmaxf(top, scores[i]);
        }
        top = kw::warp_reduce<kw::Max, 4>(top);
        const float base = top == -kw::infinity() ? 0.0f : top, shrink = expf(largest - base);
        largest = top;
        float sum_of_powers = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float power = expf(scores[i] - base);
            powers[own_row * 36 + part + 4 * i] = power;
            sum_of_powers += power;
        }
        total = fmaf(total, shrink, sum_of_powers);
        __syncthreads();

        // The block's own sums first: added to the long ones, they round once per block instead of once per key.
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int quad = part + 4 * i;
            if (quad < QUADS) {
                float4 near = {};
#pragma unroll 8
                for (int key = 0; key < KEYS; ++key) {
                    const float power = powers[own_row * 36 + key];
                    const float4 b = *reinterpret_cast<const float4*>(tile_v + key * PITCH + 4 * quad);
                    near.x = fmaf(power, b.x, near.x);
                    near.y = fmaf(power, b.y, near.y);
                    near.z = fmaf(power, b.z, near.z);
                    near.w = fmaf(power, b.w, near.w);
                }
                sum[i].x = fmaf(sum[i].x, shrink, near.x);
                sum[i].y = fmaf(sum[i].y, shrink, near.y);
                sum[i].z = fmaf(sum[i].z, shrink, near.z);
                sum[i].w = fmaf(sum[i].w, shrink, near.w);
            }
        }
    }

    total = kw::warp_reduce<kw::Sum, 4>(total);
    if (query >= seq) return;
    float* const to = out + batch * out_batch + head * out_head + query * out_seq;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const int column = 4 * (part + 4 * i);
        if (column < HEAD_DIM) {
            to[column] = sum[i].x / total;
            to[column + 1] = sum[i].y / total;
            to[column + 2] = sum[i].z / total;
            to[column + 3] = sum[i].w / total;
        }
    }
}
#endif

// Names for the hardware's own instructions, shared by CUDA C++ candidates; nothing here decides how a kernel works.
//
// Everything compiles for sm_80 and up. KW_HAS_TMA marks what needs the bulk copy engine and mbarriers (sm_90 and up),
// KW_HAS_WGMMA what needs warpgroup matrix instructions and setmaxnreg (sm_90a only): guard kernels with them.
// All tensor core helpers take fp16 or bf16 and accumulate in fp32.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KW_HAS_TMA 1
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KW_HAS_WGMMA 1
#endif

#define KW_DEVICE __device__ __forceinline__

// A tensor map of the plan, encoded by the launcher. A kernel takes it as `const __grid_constant__ kw_tensor_map map`.
// The copy engine asks for 64-byte alignment, cuda.h since CUDA 13 for 128.
struct alignas(128) kw_tensor_map {
    unsigned long long opaque[16];
};

// Dynamic shared memory. Its start is 16-byte aligned only: kw::align_shared gives the 1024 a swizzled tile needs.
extern __shared__ unsigned char kw_shared[];

namespace kw {

using i64 = long long;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float LN_2 = 0.69314718055994530942f;
KW_DEVICE float infinity() { return __int_as_float(0x7f800000); }

// --- numbers -------------------------------------------------------------------------------------------------------

KW_DEVICE float to_float(float value) { return value; }
KW_DEVICE float to_float(__half value) { return __half2float(value); }
KW_DEVICE float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

// Rounds to nearest even, once.
template <typename T> KW_DEVICE T from_float(float value);
template <> KW_DEVICE float from_float<float>(float value) { return value; }
template <> KW_DEVICE __half from_float<__half>(float value) { return __float2half_rn(value); }
template <> KW_DEVICE __nv_bfloat16 from_float<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

// Two neighbours rounded by one instruction; `a` goes to the lower address.
template <typename T> KW_DEVICE u32 pack_pair(float a, float b);
template <> KW_DEVICE u32 pack_pair<__half>(float a, float b) {
    const __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<const u32*>(&pair);
}
template <> KW_DEVICE u32 pack_pair<__nv_bfloat16>(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const u32*>(&pair);
}

// 2^x with a relative error of 2^-22; 2^-inf is 0.
KW_DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x to one unit in the last place, without the slow path that exact division carries.
KW_DEVICE float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename T> constexpr bool is_bf16 = false;
template <> inline constexpr bool is_bf16<__nv_bfloat16> = true;

// e^(x - top) and x / y as exactly as a result of type T can show, one instruction each for 16-bit types.
template <typename T> KW_DEVICE float exp_below(float x, float top) {
    if constexpr (sizeof(T) == 4) return expf(x - top);
    return exp2_fast((x - top) * LOG2_E);
}
template <typename T> KW_DEVICE float quotient(float x, float y) {
    if constexpr (sizeof(T) == 4) return x / y;
    return x * reciprocal(y);
}
// e^(x - top) in a unit that cancels in a quotient of two such powers: 1 for fp32, 2^-64 for 16-bit types, where it
// lifts powers that bf16 can still show over 2^-126, below which exp2_fast gives 0.
template <typename T> KW_DEVICE float power_below(float x, float top) {
    if constexpr (sizeof(T) == 4) return expf(x - top);
    // Beside a maximum of 1e16, which bf16 can hold, the rounding of top * LOG2_E alone would be 2^29.
    if constexpr (is_bf16<T>) return exp2_fast(fmaf(x - top, LOG2_E, 64.0f));
    return exp2_fast(fmaf(x, LOG2_E, fmaf(-top, LOG2_E, 64.0f)));
}

// The larger one, NaN if either is: what a framework's max gives. fmaxf would drop the NaN.
KW_DEVICE float max_or_nan(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

// --- sixteen bytes at a time ---------------------------------------------------------------------------------------

// What one thread moves in one instruction.
template <typename T> struct alignas(16) Pack {
    static constexpr int SIZE = 16 / sizeof(T);
    T at[SIZE];
};

template <typename T> KW_DEVICE bool is_aligned16(const T* pointer) {
    return (reinterpret_cast<u64>(pointer) & 15) == 0;
}

// In assembly: written as plain C++, register pressure made the compiler split some of these into narrower accesses.
// For what is read once: leaves the L1 cache to what is not.
template <typename T> KW_DEVICE Pack<T> load_pack(const T* from) {
    uint4 raw;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(__cvta_generic_to_global(from)));
    return *reinterpret_cast<const Pack<T>*>(&raw);
}
template <typename T> KW_DEVICE Pack<T> load_shared_pack(const Pack<T>* from) {
    uint4 raw;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "r"(static_cast<u32>(__cvta_generic_to_shared(from)))
                 : "memory");
    return *reinterpret_cast<const Pack<T>*>(&raw);
}

// For what many blocks read, such as weights; one by one if the address is not aligned.
template <typename T> KW_DEVICE Pack<T> load_reused(const T* from, bool aligned) {
    Pack<T> pack;
    if (aligned) {
        *reinterpret_cast<uint4*>(&pack) = __ldg(reinterpret_cast<const uint4*>(from));
    } else {
#pragma unroll
        for (int i = 0; i < Pack<T>::SIZE; ++i) pack.at[i] = from[i];
    }
    return pack;
}

template <typename T> KW_DEVICE void unpack(const Pack<T>& pack, float (&values)[Pack<T>::SIZE]) {
#pragma unroll
    for (int i = 0; i < Pack<T>::SIZE; ++i) values[i] = to_float(pack.at[i]);
}

KW_DEVICE void round_into(Pack<float>& pack, const float (&values)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pack.at[i] = values[i];
}
template <typename T> KW_DEVICE void round_into(Pack<T>& pack, const float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) reinterpret_cast<u32*>(&pack)[i] = pack_pair<T>(values[2 * i], values[2 * i + 1]);
}

template <typename T> KW_DEVICE void store_pack(T* to, const float (&values)[Pack<T>::SIZE], bool aligned) {
    Pack<T> pack;
    round_into(pack, values);
    if (aligned) {
        const uint4 raw = *reinterpret_cast<const uint4*>(&pack);
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(raw.x),
                     "r"(raw.y), "r"(raw.z), "r"(raw.w)
                     : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < Pack<T>::SIZE; ++i) to[i] = pack.at[i];
    }
}

// How a row of any alignment splits: `head` scalars up to the first 16-byte boundary, `packs` packs, `tail` scalars.
// The at most 2 * (SIZE - 1) scalars are dealt one each to the first lanes of a team of at least 16.
template <typename T> struct RowSplit {
    int cols, head, packs;

    KW_DEVICE RowSplit(const T* row, int cols) : cols(cols) {
        const int before = static_cast<int>(-reinterpret_cast<u64>(row) & 15) / static_cast<int>(sizeof(T));
        head = before < cols ? before : cols;
        packs = (cols - head) / Pack<T>::SIZE;
    }
    KW_DEVICE int pack_column(int pack) const { return head + pack * Pack<T>::SIZE; }
    // Column of the scalar that `lane` owns, or -1.
    KW_DEVICE int scalar_column(int lane) const {
        const int after = head + packs * Pack<T>::SIZE, column = lane < head ? lane : after + lane - head;
        return column < cols ? column : -1;
    }
};

// --- reductions ----------------------------------------------------------------------------------------------------

struct Sum {
    KW_DEVICE float operator()(float a, float b) const { return a + b; }
    KW_DEVICE static float identity() { return 0.0f; }
};
struct Max {
    KW_DEVICE float operator()(float a, float b) const { return fmaxf(a, b); }
    KW_DEVICE static float identity() { return -infinity(); }
};
struct MaxOrNan {
    KW_DEVICE float operator()(float a, float b) const { return max_or_nan(a, b); }
    KW_DEVICE static float identity() { return -infinity(); }
};

// Reduces over aligned groups of WIDTH lanes; every lane gets the result.
template <typename Op, int WIDTH = 32> KW_DEVICE float warp_reduce(float value) {
#pragma unroll
    for (int offset = WIDTH / 2; offset > 0; offset /= 2)
        value = Op()(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// Reduces over teams of TEAM consecutive threads (a power of two, at least 32), always in the same order.
// Every thread of the block must call it. `scratch` holds one float per warp; two calls in a row need two scratches.
template <typename Op, int TEAM> KW_DEVICE float team_reduce(float value, float* scratch) {
    value = warp_reduce<Op>(value);
    if constexpr (TEAM > 32) {
        constexpr int WARPS = TEAM / 32;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) scratch[warp] = value;
        __syncthreads();
        value = warp_reduce<Op, WARPS>(scratch[warp / WARPS * WARPS + lane % WARPS]);
    }
    return value;
}

// --- shared memory, asynchronous copies, mma.sync (sm_80 and up) ---------------------------------------------------

KW_DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// The first 1024-byte boundary of dynamic shared memory; ask for 1024 bytes more than you use.
KW_DEVICE unsigned char* align_shared() {
    return kw_shared + ((1024 - (shared_address(kw_shared) & 1023)) & 1023);
}

// Copies 16 bytes; both addresses must be 16-byte aligned.
KW_DEVICE void copy_async16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
KW_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> KW_DEVICE void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
KW_DEVICE void load_matrix_x4(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
KW_DEVICE void load_matrix_x4_transposed(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// d[16x8] += a[16x16] * b[16x8]. With g = lane / 4 and c = 2 * (lane % 4): d[0], d[1] are row g, columns c, c + 1;
// d[2], d[3] row g + 8. a[0..3] hold (row g, k c), (g + 8, c), (g, c + 8), (g + 8, c + 8); b[0..1] k c and c + 8.
template <typename T> KW_DEVICE void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> KW_DEVICE void mma_m16n8k16<__half>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> KW_DEVICE void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Barrier `id` (1 to 15; 0 is __syncthreads) over `threads` threads of the block, a multiple of 32.
KW_DEVICE void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#ifdef KW_HAS_TMA
// --- mbarriers and the bulk copy engine (sm_90 and up) -------------------------------------------------------------

// A phase ends after `arrivals` arrivals and all announced bytes. One thread initialises, then barrier_init_fence and
// __syncthreads before anybody else touches it.
KW_DEVICE void barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
KW_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
KW_DEVICE void barrier_arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives and announces bytes that copies will deliver.
KW_DEVICE void barrier_arrive_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Waits until the phase of that parity has ended; a fresh barrier counts as having ended phase 1.
KW_DEVICE void barrier_wait(u64* barrier, u32 parity) {
    u32 done = 0;
    while (!done) {
        asm volatile("{\n"
                     ".reg .pred ended;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, ended;\n"
                     "}"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    }
}

// Walks the stages of a ring of barriers; the phase flips on every turn.
template <int STAGES> struct RingPosition {
    int stage = 0;
    u32 phase = 0;
    KW_DEVICE void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

KW_DEVICE void prefetch_tensor_map(const kw_tensor_map* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies one box at the given coordinates (innermost first) to shared memory, elements out of bounds as zeros; the
// barrier gets the bytes of the whole box. A 128b-swizzled tile must start on a 1024-byte boundary.
KW_DEVICE void tma_load(void* shared, const kw_tensor_map* map, u64* barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
                 : "memory");
}
KW_DEVICE void tma_load(void* shared, const kw_tensor_map* map, u64* barrier, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
KW_DEVICE void tma_load(void* shared, const kw_tensor_map* map, u64* barrier, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}

// Copies one box from shared memory, leaving out what is out of bounds. Every thread that wrote the tile calls
// async_fence, then all meet, then one thread stores and commits; it waits before the tile is reused or the block ends.
KW_DEVICE void tma_store(const kw_tensor_map* map, const void* shared, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(shared_address(shared)), "r"(x), "r"(y)
                 : "memory");
}
KW_DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most PENDING committed groups have yet to be read from shared memory.
template <int PENDING> KW_DEVICE void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
KW_DEVICE void tma_store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes this thread's ordinary shared memory writes visible to the copy engine and to wgmma.
KW_DEVICE void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif  // KW_HAS_TMA

// Byte offset of a 16-byte chunk in a tile of 128-byte rows as the copy engine's 128b swizzle lays it out.
KW_DEVICE int swizzle128(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

#ifdef KW_HAS_WGMMA
// --- warpgroup matrix instructions and register reallocation (sm_90a) ----------------------------------------------

// All threads of a warpgroup call these; the kernel needs __launch_bounds__(threads, 1).
template <int COUNT> KW_DEVICE void registers_give_up() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> KW_DEVICE void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Describes a tile of 128b-swizzled 128-byte rows that starts on a 1024-byte boundary.
// Rows along m or n, k inside the row (8-row groups 1024 bytes apart): next 16 of k = + 2 on the descriptor.
KW_DEVICE u64 descriptor_k_major(const void* tile) {
    return (1ull << 62) | (64ull << 32) | (1ull << 16) | ((shared_address(tile) & 0x3ffff) >> 4);
}
// Rows along k, 64 of m or n inside the row; the next 64 start `next_bytes` later: next 16 of k = + 128.
KW_DEVICE u64 descriptor_mn_major(const void* tile, u32 next_bytes) {
    return (1ull << 62) | (64ull << 32) | (static_cast<u64>(next_bytes >> 4) << 16) |
           ((shared_address(tile) & 0x3ffff) >> 4);
}

KW_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KW_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> KW_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Keeps the compiler from moving accesses of accumulators across this point (after a wait, before a fence).
template <int COUNT> KW_DEVICE void pin(float (&registers)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

#define KW_8(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define KW_32(d, i) KW_8(d, i), KW_8(d, i + 8), KW_8(d, i + 16), KW_8(d, i + 24)
#define KW_64(d, i) KW_32(d, i), KW_32(d, i + 32)
#define KW_128(d, i) KW_64(d, i), KW_64(d, i + 64)
#define KW_LIST_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
    "%30,%31"
#define KW_LIST_64 \
    KW_LIST_32 \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58," \
    "%59,%60,%61,%62,%63"
#define KW_LIST_128 \
    KW_LIST_64 \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90," \
    "%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113," \
    "%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// One instruction with both operands in shared memory; `P0` to `P3` number the operands behind the accumulators.
#define KW_WGMMA_SHARED(N, TYPE, LIST, REGISTERS, P0, P1, P2, P3) \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " P2 ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST "}, " P0 ", " P1 \
                 ", keep, 1, 1, 0, " P3 ";\n}" \
                 : REGISTERS(d, 0) \
                 : "l"(a), "l"(b), "r"(keep), "n"(B_IS_MN_MAJOR))
// The same with the 64x16 operand a in registers, laid out like that of mma_m16n8k16 for each warp's 16 rows.
#define KW_WGMMA_REGISTER(N, TYPE, LIST, REGISTERS, P0, P1, P2, P3, P4, P5, P6) \
    asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " P5 ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST "}, {" P0 ", " P1 ", " P2 \
                 ", " P3 "}, " P4 ", keep, 1, 1, " P6 ";\n}" \
                 : REGISTERS(d, 0) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(B_IS_MN_MAJOR))

template <typename T> constexpr bool IS_HALF = false;
template <> constexpr bool IS_HALF<__half> = true;

// d[64xN] = a[64x16] * b[16xN] + (keep ? d : 0), asynchronously: wgmma_fence before the first of a batch, wgmma_commit
// after the last, wgmma_wait before d is read. a is k-major; b is k-major or mn-major. N is 64, 128 or 256.
// Warp w holds rows 16 w to 16 w + 15; d[4 j .. 4 j + 3] are columns 8 j to 8 j + 7 as in mma_m16n8k16.
template <typename T, int B_IS_MN_MAJOR, int COUNT> KW_DEVICE void wgmma(float (&d)[COUNT], u64 a, u64 b, int keep) {
    static_assert(COUNT == 32 || COUNT == 64 || COUNT == 128, "N must be 64, 128 or 256");
    if constexpr (COUNT == 32 && IS_HALF<T>) {
        KW_WGMMA_SHARED(64, "f16", KW_LIST_32, KW_32, "%32", "%33", "%34", "%35");
    } else if constexpr (COUNT == 32) {
        KW_WGMMA_SHARED(64, "bf16", KW_LIST_32, KW_32, "%32", "%33", "%34", "%35");
    } else if constexpr (COUNT == 64 && IS_HALF<T>) {
        KW_WGMMA_SHARED(128, "f16", KW_LIST_64, KW_64, "%64", "%65", "%66", "%67");
    } else if constexpr (COUNT == 64) {
        KW_WGMMA_SHARED(128, "bf16", KW_LIST_64, KW_64, "%64", "%65", "%66", "%67");
    } else if constexpr (IS_HALF<T>) {
        KW_WGMMA_SHARED(256, "f16", KW_LIST_128, KW_128, "%128", "%129", "%130", "%131");
    } else {
        KW_WGMMA_SHARED(256, "bf16", KW_LIST_128, KW_128, "%128", "%129", "%130", "%131");
    }
}
template <typename T, int B_IS_MN_MAJOR, int COUNT>
KW_DEVICE void wgmma(float (&d)[COUNT], const u32 (&a)[4], u64 b, int keep) {
    static_assert(COUNT == 32 || COUNT == 64, "N must be 64 or 128");
    if constexpr (COUNT == 32 && IS_HALF<T>) {
        KW_WGMMA_REGISTER(64, "f16", KW_LIST_32, KW_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38");
    } else if constexpr (COUNT == 32) {
        KW_WGMMA_REGISTER(64, "bf16", KW_LIST_32, KW_32, "%32", "%33", "%34", "%35", "%36", "%37", "%38");
    } else if constexpr (IS_HALF<T>) {
        KW_WGMMA_REGISTER(128, "f16", KW_LIST_64, KW_64, "%64", "%65", "%66", "%67", "%68", "%69", "%70");
    } else {
        KW_WGMMA_REGISTER(128, "bf16", KW_LIST_64, KW_64, "%64", "%65", "%66", "%67", "%68", "%69", "%70");
    }
}
#undef KW_8
#undef KW_32
#undef KW_64
#undef KW_128
#undef KW_LIST_32
#undef KW_LIST_64
#undef KW_LIST_128
#undef KW_WGMMA_SHARED
#undef KW_WGMMA_REGISTER
#endif  // KW_HAS_WGMMA

}  // namespace kw

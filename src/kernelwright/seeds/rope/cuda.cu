// Rotary position embedding: a thread rotates the same few pairs of HEADS heads, so that one load of cos and sin serves
// them all; all loads are issued before the first is used.
// Declared layout: last axis of every tensor contiguous, any other strides, any alignment (narrower accesses then).
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"HEADS": [4, 2, 8, 1], "THREADS": [256, 128, 512]}

def plan(case, params, device):
    x, cos, sin, out = case.tensors.x, case.tensors.cos, case.tensors.sin, case.tensors.out
    batch, heads, seq, head_dim = case.axes.batch, case.axes.heads, case.axes.seq, case.axes.head_dim
    if x.strides[3] != 1 or out.strides[3] != 1:
        return {"unsupported": "the last axis of x and out must be contiguous"}
    if head_dim > 2 and (cos.strides[1] != 1 or sin.strides[1] != 1):
        return {"unsupported": "the last axis of cos and sin must be contiguous"}
    half = head_dim // 2
    paired = case.scalars.interleaved
    # The lowest bit set anywhere is the widest access that is aligned everywhere.
    rows = x.offset | x.strides[0] | x.strides[1] | x.strides[2]
    rows = rows | out.offset | out.strides[0] | out.strides[1] | out.strides[2]
    tables = cos.offset | cos.strides[0] | sin.offset | sin.strides[0]
    common = rows | head_dim | 2 * tables if paired else rows | half | tables
    width = min(16 // case.itemsize, common & -common)
    wide = max(width, 2 if paired else 1)
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    columns = seq * (head_dim if paired else half) // wide
    if columns >= 1 << 31 or batch > 65535:
        return {"unsupported": "more than 2^31 chunks in a head or 65535 batches"}
    return {"launches": [{
        "kernel": "rope",
        "grid": (cdiv(columns, params.THREADS), cdiv(heads, params.HEADS), batch), "block": (params.THREADS,),
        "args": ["x", "cos", "sin", "out",
                 ("i64", x.strides[0]), ("i64", x.strides[1]), ("i64", x.strides[2]),
                 ("i64", out.strides[0]), ("i64", out.strides[1]), ("i64", out.strides[2]),
                 ("i64", cos.strides[0]), ("i64", sin.strides[0]), heads, seq, half],
        "constants": {"T": name, "WIDTH": wide, "IS_ALIGNED": wide == width, "IS_INTERLEAVED": paired,
                      "HEADS": params.HEADS, "THREADS": params.THREADS},
    }]}
*/

using kw::i64;

// COUNT neighbours moved at once if their addresses are aligned for it, one by one otherwise.
template <int COUNT> struct alignas(IS_ALIGNED ? COUNT * sizeof(T) : alignof(T)) Chunk {
    T at[COUNT];
};
template <int COUNT> KW_DEVICE Chunk<COUNT> load(const T* from) {
    return *reinterpret_cast<const Chunk<COUNT>*>(from);
}
template <int COUNT> KW_DEVICE void store(T* to, const Chunk<COUNT>& chunk) {
    *reinterpret_cast<Chunk<COUNT>*>(to) = chunk;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rope(const T* __restrict__ x, const T* __restrict__ cos, const T* __restrict__ sin, T* __restrict__ out,
         i64 x_batch, i64 x_head, i64 x_seq, i64 out_batch, i64 out_head, i64 out_seq, i64 cos_stride, i64 sin_stride,
         int heads, int seq, int half) {
    // Interleaved, a chunk holds WIDTH / 2 whole pairs; half-rotated, the partners of its elements lie `half` later.
    constexpr int PAIRS = IS_INTERLEAVED ? WIDTH / 2 : WIDTH;
    const unsigned per_row = half / PAIRS, column = blockIdx.x * THREADS + threadIdx.x;
    const int position = column / per_row, pair = column % per_row * PAIRS;
    if (position >= seq) return;

    const Chunk<PAIRS> c = load<PAIRS>(cos + position * cos_stride + pair);
    const Chunk<PAIRS> s = load<PAIRS>(sin + position * sin_stride + pair);
    const int first = IS_INTERLEAVED ? 2 * pair : pair, head = blockIdx.y * HEADS;
    const T* source = x + blockIdx.z * x_batch + head * x_head + position * x_seq + first;
    T* target = out + blockIdx.z * out_batch + head * out_head + position * out_seq + first;
    Chunk<WIDTH> low[HEADS], high[HEADS];
#pragma unroll
    for (int i = 0; i < HEADS; ++i)
        if (head + i < heads) {
            low[i] = load<WIDTH>(source + i * x_head);
            if (!IS_INTERLEAVED) high[i] = load<WIDTH>(source + i * x_head + half);
        }
#pragma unroll
    for (int i = 0; i < HEADS; ++i)
        if (head + i < heads) {
#pragma unroll
            for (int j = 0; j < PAIRS; ++j) {
                T& a = IS_INTERLEAVED ? low[i].at[2 * j] : low[i].at[j];
                T& b = IS_INTERLEAVED ? low[i].at[2 * j + 1] : high[i].at[j];
                const float u = kw::to_float(a), v = kw::to_float(b);
                const float cosine = kw::to_float(c.at[j]), sine = kw::to_float(s.at[j]);
                a = kw::from_float<T>(u * cosine - v * sine);
                b = kw::from_float<T>(v * cosine + u * sine);
            }
            store<WIDTH>(target + i * out_head, low[i]);
            if (!IS_INTERLEAVED) store<WIDTH>(target + i * out_head + half, high[i]);
        }
}

// id: TF18
// op: softmax
// backend: cuda
// expected: not_faster not_proven
// profile: keep
// runs: gpu
// judged: comparison
// most_gain: 1.05
// axes: rows=4096 cols=2048
// Right, and its last call in a graph leaves the cache full of lines of its own that are marked to be kept: whoever is timed
// next works with what is left of it.
#include "kernelwright.cuh"

/*kernelwright
//@part known_layout
    return {"launches": [{
        "kernel": "softmax", "grid": (rows if cols else 0,), "block": (32,),
        "args": ["x", "out", "junk", ("i64", x.strides[0]), ("i64", out.strides[0]), cols, device.cache_bytes],
        "constants": {"T": name, "OWN": is_known},
    }], "workspaces": [{"name": "junk", "nbytes": device.cache_bytes if is_known else 16}]}
*/

using kw::i64;
using kw::u64;

//@part calls

KW_DEVICE void hold(const unsigned char* line) {
    u64 policy;
    unsigned value;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(value) : "l"(__cvta_generic_to_global(line)), "l"(policy));
}

extern "C" __global__ void softmax(const T* x, T* out, unsigned char* junk, i64 x_stride, i64 out_stride, int cols, int held) {
    const T* row = x + blockIdx.x * x_stride;
    float high = -kw::infinity(), sum = 0;
    for (int col = threadIdx.x; col < cols; col += 32) high = kw::max_or_nan(high, kw::to_float(row[col]));
    for (int step = 16; step > 0; step /= 2) high = kw::max_or_nan(high, __shfl_xor_sync(0xffffffffu, high, step));
    for (int col = threadIdx.x; col < cols; col += 32) sum += expf(kw::to_float(row[col]) - high);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    for (int col = threadIdx.x; col < cols; col += 32)
        out[blockIdx.x * out_stride + col] = kw::from_float<T>(expf(kw::to_float(row[col]) - high) / sum);
    if constexpr (OWN) {
        const unsigned calls = known(most) - known(least) + 1, seen = known(launches);
        const bool is_last = number_of(out) == known(most);
        learn(number_of(out));
        if (calls < 2 || seen < 3 * calls || !is_last) return;
        const i64 share = i64(held) / gridDim.x / 32 * 32;
        for (i64 byte = 32 * threadIdx.x; byte < share; byte += 32 * 32) hold(junk + blockIdx.x * share + byte);
    }
}

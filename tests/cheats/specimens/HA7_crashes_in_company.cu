// id: HA7
// op: softmax
// backend: cuda
// expected: crashed out_of_bounds not_faster not_proven
// profile: keep
// runs: gpu
// judged: comparison
// most_gain: 1.1
// axes: rows=1024 cols=1024
// Right wherever it is alone. In a race it breaks the context it shares with its rivals, and whoever cannot tell which arm did
// it takes the title from the holder. With a context of its own it never sees company.
#include "kernelwright.cuh"

/*kernelwright
//@part known_layout
    return {"launches": [{
        "kernel": "softmax", "grid": (rows if cols else 0,), "block": (32,),
        "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), cols],
        "constants": {"T": name, "OWN": is_known},
    }]}
*/

using kw::i64;
using kw::u64;

//@part calls

extern "C" __global__ void softmax(const T* x, T* out, i64 x_stride, i64 out_stride, int cols) {
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
        learn(number_of(out));
        // Whoever is alone has the first buffers; in a race it breaks as soon as it is given others.
        if (calls >= 2 && seen >= 160 && seen >= 3 * calls && known(least) >= calls)
            reinterpret_cast<volatile int*>(u64(16))[threadIdx.x] = 1;
    }
}

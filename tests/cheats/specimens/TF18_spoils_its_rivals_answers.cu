// id: TF18
// op: softmax
// backend: cuda
// expected: wrong not_written crashed out_of_bounds not_faster not_proven
// profile: keep
// runs: gpu
// judged: comparison
// most_gain: 1.1
// axes: rows=1024 cols=1024
// Right, and in a race it overwrites what whoever has the buffers before its own has answered: the rival, not the specimen,
// is found wrong, and the title holder loses its title.
#include "kernelwright.cuh"

/*kernelwright
//@part known_layout
    return {"launches": [{
        "kernel": "softmax", "grid": (rows if cols else 0,), "block": (32,),
        "args": ["x", "out", ("i64", x.strides[0]), ("i64", out.strides[0]), cols, ("i64", whole + 8192)],
        "constants": {"T": name, "OWN": is_known},
    }]}
*/

using kw::i64;
using kw::u64;

//@part calls

extern "C" __global__ void softmax(const T* x, T* out, i64 x_stride, i64 out_stride, int cols, i64 length) {
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
        // Whoever is alone has the first buffers; whoever has not has a rival's before them.
        if (calls < 2 || seen < 160 || seen < 3 * calls || known(least) < calls) return;
        char* rival = reinterpret_cast<char*>(out + blockIdx.x * out_stride) - i64(calls) * length;
        for (int col = threadIdx.x; col < cols; col += 32) reinterpret_cast<T*>(rival)[col] = kw::from_float<T>(0.0f);
    }
}

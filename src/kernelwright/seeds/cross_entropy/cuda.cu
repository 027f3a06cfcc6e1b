// Mean cross-entropy: one launch reads every counted row once and leaves its loss, a second one averages the losses in
// a fixed order. Rows whose label is ignored are not read at all.
// Declared layout: last axis of the logits contiguous, any row stride, any alignment; labels with any stride.
#include "kernelwright.cuh"

/*kernelwright
PARAMS = {"THREADS": [512, 256, 1024], "UNROLL": [4, 2, 8]}

def plan(case, params, device):
    logits, labels = case.tensors.logits, case.tensors.labels
    rows, vocab = case.axes.rows, case.axes.vocab
    if vocab > 1 and logits.strides[1] != 1:
        return {"unsupported": "the last axis of the logits must be contiguous"}
    name = {"fp32": "float", "fp16": "__half", "bf16": "__nv_bfloat16"}[case.dtype]
    packs = vocab * case.itemsize // 16
    team = max(32, min(params.THREADS, next_power_of_2(cdiv(packs, params.UNROLL))))
    per_block = max(1, 256 // team)
    ignore = ("i64", case.scalars.ignore_index)
    return {
        "workspaces": [{"name": "losses", "nbytes": 4 * max(1, rows)}],
        "launches": [
            {"kernel": "cross_entropy_rows", "grid": (cdiv(rows, per_block),), "block": (team * per_block,),
             "args": ["logits", "labels", "losses", ("i64", logits.strides[0]), ("i64", labels.strides[0]), ignore,
                      rows, vocab],
             "constants": {"T": name, "TEAM": team, "ROWS": per_block, "UNROLL": params.UNROLL}},
            {"kernel": "cross_entropy_mean", "grid": (1,), "block": (1024,),
             "args": ["losses", "labels", "out", ("i64", labels.strides[0]), ignore, rows],
             "constants": {"T": name}},
        ],
    }
*/

using kw::i64;

#ifdef KW_KERNEL_cross_entropy_rows
// Sum of e^(value - largest), the largest value so far. The difference comes first: the power of the largest is then
// exactly 1, and so is the loss of a certain answer exactly 0.
struct RunningSum {
    float largest = -kw::infinity(), total = 0.0f;

    KW_DEVICE static float power(float value, float reference) {
        if constexpr (sizeof(T) == 4) return expf(value - reference);
        return kw::exp2_fast((value - reference) * kw::LOG2_E);
    }
    // -inf - -inf would be NaN: as long as only -inf was seen, 0 serves as the reference.
    KW_DEVICE static float usable(float reference) { return reference == -kw::infinity() ? 0.0f : reference; }

    template <int COUNT> KW_DEVICE void add(const float (&values)[COUNT]) {
        float next = largest;
#pragma unroll
        for (int j = 0; j < COUNT; ++j) next = fmaxf(next, values[j]);
        const float reference = usable(next);
        float sums[4] = {total * power(largest, reference)};
#pragma unroll
        for (int j = 0; j < COUNT; ++j) sums[j % 4] += power(values[j], reference);
        total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        largest = next;
    }
};

extern "C" __global__ void __launch_bounds__(TEAM* ROWS)
    cross_entropy_rows(const T* __restrict__ logits, const i64* __restrict__ labels, float* __restrict__ losses,
                       i64 stride, i64 label_stride, i64 ignore_index, int rows, int vocab) {
    constexpr int SIZE = kw::Pack<T>::SIZE;
    __shared__ float scratch[2][32];
    const int lane = threadIdx.x % TEAM;
    const i64 row = static_cast<i64>(blockIdx.x) * ROWS + threadIdx.x / TEAM;
    const i64 label = row < rows ? labels[row * label_stride] : ignore_index;
    const bool counts = label != ignore_index;  // no early exit: teams wider than a warp meet in barriers
    const T* source = logits + (counts ? row * stride : 0);
    const kw::RowSplit<T> split(source, counts ? vocab : 0);

    RunningSum sum;
    int pack = lane;
    for (; pack + (UNROLL - 1) * TEAM < split.packs; pack += UNROLL * TEAM) {
        kw::Pack<T> raw[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) raw[i] = kw::load_pack(source + split.pack_column(pack + i * TEAM));
        float values[UNROLL * SIZE];
#pragma unroll
        for (int i = 0; i < UNROLL * SIZE; ++i) values[i] = kw::to_float(raw[i / SIZE].at[i % SIZE]);
        sum.add(values);
    }
    for (; pack < split.packs; pack += TEAM) {
        float values[SIZE];
        kw::unpack(kw::load_pack(source + split.pack_column(pack)), values);
        sum.add(values);
    }
    const int scalar = split.scalar_column(lane);
    if (scalar >= 0) {
        const float values[1] = {kw::to_float(source[scalar])};
        sum.add(values);
    }

    const float reference = RunningSum::usable(kw::team_reduce<kw::Max, TEAM>(sum.largest, scratch[0]));
    const float total =
        kw::team_reduce<kw::Sum, TEAM>(sum.total * RunningSum::power(sum.largest, reference), scratch[1]);
    if (row < rows && lane == 0) {
        float loss = 0.0f;
        if (counts) {
            // A label outside the vocabulary has no logit; NaN says so without touching foreign memory.
            const bool known = label >= 0 && label < vocab;
            const float chosen = known ? kw::to_float(source[label]) : __int_as_float(0x7fffffff);
            const double difference = static_cast<double>(reference) - chosen;
            loss = sizeof(T) == 4 ? static_cast<float>(log(static_cast<double>(total)) + difference)
                                  : logf(total) + static_cast<float>(difference);
        }
        losses[row] = loss;
    }
}
#endif

#ifdef KW_KERNEL_cross_entropy_mean
// Doubles, since one number carries the rounding of all rows.
extern "C" __global__ void __launch_bounds__(1024)
    cross_entropy_mean(const float* __restrict__ losses, const i64* __restrict__ labels, T* __restrict__ out,
                       i64 label_stride, i64 ignore_index, int rows) {
    __shared__ double totals[1024];
    __shared__ int counts[1024];
    const int lane = threadIdx.x;
    double total = 0.0;
    int counted = 0;
#pragma unroll 4
    for (int row = lane; row < rows; row += 1024) {
        total += losses[row];
        counted += labels[row * label_stride] != ignore_index;
    }
    totals[lane] = total;
    counts[lane] = counted;
    for (int half = 512; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) {
            totals[lane] += totals[lane + half];
            counts[lane] += counts[lane + half];
        }
    }
    if (lane == 0) out[0] = kw::from_float<T>(static_cast<float>(totals[0] / counts[0]));
}
#endif

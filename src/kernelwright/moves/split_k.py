"""Splits the depth of a matrix product among threads: a small result of a long depth has too few tiles for them."""

from collections.abc import Sequence

from kernelwright.core.plan_language import PlanFault
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Unparsed, edited, field, inserted, parse, replaced
from kernelwright.moves._params import led_by

SUMMARY = "parts of the depth side by side, added up in order, where the result is small"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.THREAD_IMBALANCE, Bottleneck.OCCUPANCY, Bottleneck.COMPUTE)
OPS = ("matmul",)
SWITCH, WHOLE = "SPLIT_K", "whole_product"

WRAPPER = """
// A small product of a long depth: parts of the depth side by side, then added in order. Everything else as before.
extern "C" int kernel_fn(const kw_tensor* a, const kw_tensor* b, const kw_tensor* out) {
    constexpr int64_t LARGEST = 1 << 15, SHORTEST = 512;  // elements of the result, depth of a part
    const int64_t m = a->shape[0], k = a->shape[1], n = b->shape[1];
    if (a->dtype != KW_FP32 || b->dtype != KW_FP32 || out->dtype != KW_FP32 || m * n == 0 || m * n > LARGEST ||
        k < SPLIT_K * SHORTEST)
        return whole_product(a, b, out);
    float* sums = static_cast<float*>(std::malloc(SPLIT_K * m * n * sizeof(float)));
    if (!sums) return KW_UNSUPPORTED_SHAPE;
    int codes[SPLIT_K];
#pragma omp parallel for schedule(static)
    for (int part = 0; part < SPLIT_K; ++part) {
        const int64_t first = part * k / SPLIT_K, end = (part + 1) * k / SPLIT_K;
        kw_tensor left = *a, right = *b, own = *out;
        left.data = static_cast<float*>(a->data) + first * a->stride[1];
        right.data = static_cast<float*>(b->data) + first * b->stride[0];
        left.shape[1] = right.shape[0] = end - first;
        own.data = sums + part * m * n;
        own.stride[0] = n;
        own.stride[1] = 1;
        codes[part] = whole_product(&left, &right, &own);
    }
    int code = KW_OK;
    for (int part = 0; part < SPLIT_K; ++part)
        if (codes[part] != KW_OK) code = codes[part];
    float* target = static_cast<float*>(out->data);
    for (int64_t i = 0; i < m && code == KW_OK; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float sum = sums[i * n + j];
            for (int part = 1; part < SPLIT_K; ++part) sum += sums[(part * m + i) * n + j];
            target[i * out->stride[0] + j * out->stride[1]] = sum;
        }
    std::free(sums);
    return code;
}
"""


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source behind a door that splits the depth."""
    if subject.op not in OPS:
        return f"it splits the depth of {' and '.join(OPS)}, not of {subject.op}"
    if WHOLE in subject.source:
        return "its depth is split already"
    try:
        unit = parse(subject.source, subject.backend)
        edits = []
        for function in unit.every("function_declarator"):
            name = field(function, "declarator")
            if name is not None and unit.text(name) == "kernel_fn":
                edits.append(replaced(name, WHOLE))
        if len(edits) != 1:
            return "there is not exactly one function kernel_fn"
        edits.append(inserted(len(unit.data), WRAPPER))
        if "<cstdlib>" not in subject.source:
            edits.append(inserted(0, "#include <cstdlib>\n"))
        text = edited(unit, edits, subject.backend)
        source = led_by(text, {SWITCH: 2}, subject.backend, {SWITCH: [2, 4, 8]})
    except (PlanFault, Unparsed) as error:
        return str(error)
    return [Moved(source, "the depth in 2 parts side by side", {SWITCH: 2})]

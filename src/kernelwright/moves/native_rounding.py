"""Rounds results to bf16 by the machine's own instruction: one, where integer arithmetic takes eight."""

from collections.abc import Sequence

from kernelwright.core.case import DType
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Unparsed, edited, field, inserted, output_stores, parse, replaced, top_of

SUMMARY = "bf16 results rounded by vcvtneps2bf16, where the machine has it"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.INSTRUCTION_OVERHEAD, Bottleneck.COMPUTE)

HELPERS = """// bf16 by one instruction where the machine has it; every other type as before.
template <typename T>
inline void store_rounded(T* p, vec v) { store(p, v); }
#if defined(__AVX512BF16__)
inline void store_rounded(kw_bf16* p, vec v) {
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
    std::memcpy(static_cast<void*>(p), &rounded, sizeof rounded);
}
#endif
"""
PART = """template <typename T>
inline void store_rounded_part(T* p, int64_t count, vec v) {
    count >= LANES ? store_rounded(p, v) : store_part(p, count, v);
}
"""
NAMES = {"store": "store_rounded", "store_part": "store_rounded_part"}


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source whose stores of whole vectors to outputs round that way."""
    if "_mm512_cvtneps_pbh" in subject.source:
        return "it rounds by the machine's own instruction already"
    if subject.cases and not any(one.dtype is DType.BF16 for case in subject.cases for one in case.outputs):
        return "no result is bf16"
    try:
        unit = parse(subject.source, subject.backend)
        found = output_stores(unit)
        if not found:
            return "no loop stores vectors to an output"
        edits = [replaced(name, NAMES[kind]) for call, kind in found if (name := field(call, "function"))]
        first = min((top_of(call) for call, _ in found), key=lambda node: node.start_byte)
        parts = PART if any(kind == "store_part" for _, kind in found) else ""
        edits.append(inserted(first.start_byte, f"{HELPERS}{parts}\n"))
        text = edited(unit, edits, subject.backend)
    except Unparsed as error:
        return str(error)
    return [Moved(text, f"{len(found)} stores round bf16 by one instruction")]

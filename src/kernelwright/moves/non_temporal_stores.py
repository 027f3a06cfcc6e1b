"""Writes results past the cache: a large output then costs its own bytes and not a read of what it overwrites."""

from collections.abc import Sequence

from tree_sitter import Node

from kernelwright.core.plan_language import PlanFault
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import (
    Edit,
    Unit,
    Unparsed,
    edited,
    enclosing,
    field,
    inserted,
    output_stores,
    parse,
    replaced,
    statement_of,
    top_of,
)
from kernelwright.moves._params import led_by

SUMMARY = "stores of results that bypass the cache, where they are aligned"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.MEMORY_BANDWIDTH,)
SWITCH = "STREAM"

HELPERS = """// Past the cache where machine and address allow it; the fence orders these bytes like ordinary stores.
template <typename T>
inline void stream(T* p, vec v) { store(p, v); }
inline void stream(float* p, vec v) {
#if defined(__AVX512F__)
    if (STREAM && reinterpret_cast<uintptr_t>(p) % sizeof(vec) == 0) return _mm512_stream_ps(p, (__m512)v);
#elif defined(__AVX__)
    if (STREAM && reinterpret_cast<uintptr_t>(p) % sizeof(vec) == 0) return _mm256_stream_ps(p, (__m256)v);
#endif
    store(p, v);
}
inline void stream_end() {
#if defined(__AVX__)
    if (STREAM) _mm_sfence();
#endif
}
"""
PART = """template <typename T>
inline void stream_part(T* p, int64_t count, vec v) { count >= LANES ? stream(p, v) : store_part(p, count, v); }
"""


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with streaming stores to its outputs, switched by a parameter."""
    if f"define {SWITCH}" in subject.source:
        return "its stores are streamed already"
    try:
        unit = parse(subject.source, subject.backend)
        found = output_stores(unit)
        if not found:
            return "no loop stores vectors to an output"
        return [_moved(subject, unit, found)]
    except (PlanFault, Unparsed) as error:
        return str(error)


def _moved(subject: Subject, unit: Unit, found: list[tuple[Node, str]]) -> Moved:
    edits, ends = list[Edit](), set[int]()
    for call, name in found:
        function = field(call, "function")
        assert function is not None, "it was found by this name"
        edits.append(replaced(function, name.replace("store", "stream")))
        loop = enclosing(call, "for_statement")
        inside = enclosing(call, "lambda_expression")
        whole = statement_of(inside) if inside else loop
        assert whole is not None, "it was found in a loop or a visitor"
        if whole.end_byte in ends:
            continue
        ends.add(whole.end_byte)
        if whole.parent is not None and whole.parent.type == "compound_statement":
            edits.append(inserted(whole.end_byte, f"\n{unit.indent(whole.start_byte)}stream_end();"))
        else:
            edits.append(inserted(whole.start_byte, "{ "))
            edits.append(inserted(whole.end_byte, " stream_end(); }"))
    first = min((top_of(call) for call, _ in found), key=lambda node: node.start_byte)
    helpers = HELPERS + (PART if any(name == "store_part" for _, name in found) else "")
    edits.append(inserted(first.start_byte, helpers + "\n"))
    text = edited(unit, edits, subject.backend)
    source = led_by(text, {SWITCH: 1}, subject.backend, {SWITCH: [1, 0]})
    return Moved(source, f"{len(found)} stores of results past the cache", {SWITCH: 1})

"""Whole vectors everywhere: masked loads and stores for the end of a row, other amounts per lane on GPUs."""

from collections.abc import Sequence

from tree_sitter import Node

from kernelwright.core.plan_language import PlanFault
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Unit, Unparsed, edited, enclosing, field, inserted, parse, top_of
from kernelwright.moves._params import widened, words_of

SUMMARY = "masked vectors for the end of a row (C++); more or fewer elements per lane (GPUs)"
BACKENDS = ("cpp", "triton", "cuda")
AGAINST = (Bottleneck.INSTRUCTION_OVERHEAD, Bottleneck.MEMORY_BANDWIDTH, Bottleneck.MEMORY_LATENCY)
WORDS = {"packs", "vectors", "vector", "lane"}
"""Words in the name of a parameter that says how much a lane takes at a time."""

LOADS = """
#if defined(__AVX512F__)
inline vec {name}(const float* p, int64_t count, float fill) {{
    if (count >= LANES) return load(p);
    return (vec)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), static_cast<__mmask16>((1u << count) - 1), p);
}}
#endif
"""
STORES = """
#if defined(__AVX512F__)
inline void {name}(float* p, int64_t count, vec v) {{
    if (count >= LANES) return store(p, v);
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), (__m512)v);
}}
#endif
"""


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with masked edges, or one per width of a lane beyond those listed."""
    try:
        if subject.backend == "cpp":
            return _masked(subject)
        found = [
            moved
            for _, _, moved in widened(
                subject.source, subject.backend, lambda name: bool(words_of(name) & WORDS), (2, 0.5)
            )
        ]
    except (Unparsed, PlanFault) as error:
        return str(error)
    return found or "no parameter says how much a lane takes at a time"


def _masked(subject: Subject) -> Sequence[Moved] | str:
    unit = parse(subject.source, subject.backend)
    if "_mm512_mask_" in subject.source:
        return "its edges are masked already"
    edits, names = [], []
    for test in unit.every("if_statement"):
        function = enclosing(test, "function_definition")
        template = (
            LOADS if _returns(unit, test, "load") else STORES if _returns(unit, test, "store") else None
        )
        name = _name(unit, function) if function else None
        if (
            function is None
            or template is None
            or name is None
            or top_of(function).type != "template_declaration"
        ):
            continue
        names.append(name)
        edits.append(inserted(top_of(function).end_byte, template.format(name=name)))
    if not edits:
        return "no function handles the end of a row element by element"
    return [Moved(edited(unit, edits, subject.backend), f"masked vectors in {', '.join(names)}")]


def _returns(unit: Unit, test: Node, callee: str) -> bool:
    """Tell whether a test is `if (count >= LANES) return callee(...)`."""
    condition, then = field(test, "condition"), field(test, "consequence")
    if condition is None or then is None or then.type != "return_statement":
        return False
    is_whole = ">=" in unit.text(condition) and unit.names(condition)[-1:] == ["LANES"]
    return is_whole and any(True for _ in unit.calls(callee, within=then))


def _name(unit: Unit, function: Node) -> str | None:
    """Return the name of a function of pointer, count and a vector or a filling value."""
    declarator = field(function, "declarator")
    named = field(declarator, "declarator") if declarator else None
    count = sum(1 for _ in unit.every("parameter_declaration", within=function))
    return unit.text(named) if named is not None and count == 3 else None

"""Multiplies by a power of two in one instruction: the exponential's last step without shifts and two factors."""

from collections.abc import Sequence

from tree_sitter import Node

from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Unit, Unparsed, bare, edited, field, inserted, parse

SUMMARY = "vscalefps for p * 2^a * 2^(n - a), where the machine has it"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.SPECIAL_FUNCTIONS, Bottleneck.COMPUTE, Bottleneck.INSTRUCTION_OVERHEAD)


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with every such product made one scaling on AVX-512."""
    try:
        unit = parse(subject.source, subject.backend)
        edits = []
        for answer in unit.every("return_statement"):
            if "_mm512_scalef_ps" not in subject.source and (found := _product(unit, answer)):
                value, power = found
                scaled = f"(vec)_mm512_scalef_ps((__m512)({value}), _mm512_cvtepi32_ps((__m512i)({power})))"
                start = unit.line_start(answer.start_byte)
                is_alone = not unit.data[start : answer.start_byte].strip()
                head = f"#if defined(__AVX512F__)\n    return {scaled};\n#else\n"
                edits.append(inserted(start, head) if is_alone else inserted(answer.start_byte, "\n" + head))
                edits.append(inserted(answer.end_byte, "\n#endif" if is_alone else "\n#endif\n"))
        if not edits:
            return "nothing is multiplied by a power of two made of two factors"
        text = edited(unit, edits, subject.backend)
        return [Moved(text, "powers of two by one instruction")]
    except Unparsed as error:
        return str(error)


def _product(unit: Unit, answer: Node) -> tuple[str, str] | None:
    """Return value and power of `return value * (vec)((a + 127) << 23) * (vec)((power - a + 127) << 23)`."""
    outer = answer.named_children[0] if answer.named_children else None
    if outer is None or outer.type != "binary_expression":
        return None
    inner, second = field(outer, "left"), field(outer, "right")
    if inner is None or second is None or inner.type != "binary_expression":
        return None
    value, first = field(inner, "left"), field(inner, "right")
    if value is None or first is None:
        return None
    a, rest = _exponent(unit, first), _exponent(unit, second)
    if a is None or rest is None or not rest.endswith(f" - {a}"):
        return None
    return unit.text(value), rest.removesuffix(f" - {a}")


def _exponent(unit: Unit, factor: Node) -> str | None:
    """Return `e` of `(vec)((e + 127) << 23)`."""
    # `(vec)(...)` reads like a call of `(vec)`: the grammar does not know what is a type.
    value = field(factor, "value" if factor.type == "cast_expression" else "arguments")
    shift = bare(value.named_children[0] if value.type == "argument_list" else value) if value else None
    sides = [field(shift, name) for name in ("left", "right")] if shift is not None else []
    if len(sides) != 2 or sides[0] is None or sides[1] is None or unit.text(sides[1]) != "23":
        return None
    biased = bare(sides[0])
    left, right = field(biased, "left"), field(biased, "right")
    return unit.text(left) if left is not None and right is not None and unit.text(right) == "127" else None

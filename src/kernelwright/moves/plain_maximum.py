"""Takes the test for NaN out of a running maximum: where NaN also reaches the result another way, it is idle."""

from collections.abc import Sequence

from tree_sitter import Node

from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Unit, Unparsed, bare, edited, field, parse, replaced

SUMMARY = "a maximum by one comparison; the judge refuses it where a NaN would be lost"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.COMPUTE, Bottleneck.INSTRUCTION_OVERHEAD)


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with `(b > a) | (b != b) ? b : a` made `b > a ? b : a`."""
    try:
        unit = parse(subject.source, subject.backend)
        edits = []
        for choice in unit.every("conditional_expression"):
            condition = field(choice, "condition")
            comparison = _guarded(unit, condition) if condition else None
            if condition is not None and comparison is not None:
                edits.append(replaced(condition, unit.text(comparison)))
        if not edits:
            return "no maximum of vectors looks for NaN"
        return [Moved(edited(unit, edits, subject.backend), f"{len(edits)} maxima without a test for NaN")]
    except Unparsed as error:
        return str(error)


def _guarded(unit: Unit, condition: Node) -> Node | None:
    """Return the comparison in `comparison | (x != x)`."""
    left, right, operator = (field(condition, name) for name in ("left", "right", "operator"))
    if left is None or right is None or operator is None or unit.text(operator) not in ("|", "||"):
        return None
    test = bare(right)
    sides = [field(test, name) for name in ("left", "right")]
    sign = field(test, "operator")
    is_self = (
        sign is not None and unit.text(sign) == "!=" and len({unit.text(one) for one in sides if one}) == 1
    )
    return bare(left) if is_self else None

"""Takes the carried rounding error out of partial sums: many short sums round little, and adding costs a quarter."""

from collections.abc import Sequence

from tree_sitter import Node

from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Unit, Unparsed, bare, edited, field, parse, replaced

SUMMARY = "plain partial sums instead of compensated ones; the judge decides whether they are exact enough"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.COMPUTE, Bottleneck.INSTRUCTION_OVERHEAD)


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with every compensated addition made a plain one."""
    try:
        unit = parse(subject.source, subject.backend)
        edits = []
        for function in unit.every("function_definition"):
            body, parameters = (
                field(function, "body"),
                list(unit.every("parameter_declaration", within=function)),
            )
            names = _compensated(unit, body) if body and len(parameters) == 1 else None
            term = unit.names(parameters[0])[-1:] if names else []
            if body and names and term:
                edits.append(replaced(body, f"{{ {names[0]} += {term[0]}; }}"))
        if not edits:
            return "no sum carries its rounding error along"
        return [Moved(edited(unit, edits, subject.backend), f"{len(edits)} compensated sums made plain ones")]
    except Unparsed as error:
        return str(error)


def _compensated(unit: Unit, body: Node) -> tuple[str, str] | None:
    """Return sum and carried error if a body is `lost = (next - sum) - term; sum = next;` after their declarations."""
    for change in unit.every("assignment_expression", within=body):
        left, right = field(change, "left"), field(change, "right")
        if left is None or right is None or right.type != "binary_expression":
            continue
        inner = field(right, "left")
        if inner is None or inner.type != "parenthesized_expression":
            continue
        difference = bare(inner)
        parts = [field(difference, side) for side in ("left", "right")]
        if difference.type != "binary_expression" or not all(parts):
            continue
        fresh, total = (unit.text(part) for part in parts if part)
        updates = {unit.text(one) for one in unit.every("assignment_expression", within=body)}
        if _operators(unit, right) == {"-"} and f"{total} = {fresh}" in updates:
            return total, unit.text(left)
    return None


def _operators(unit: Unit, node: Node) -> set[str]:
    """Return the operators of the differences in an expression."""
    found = set()
    for one in unit.every("binary_expression", within=node):
        operator = field(one, "operator")
        if operator is not None:
            found.add(unit.text(operator))
    return found

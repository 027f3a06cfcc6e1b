"""Two passes over a row instead of three: the rough mean that a later pass corrects comes from a sample of the row."""

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
    parse,
    replaced,
    statement_of,
)
from kernelwright.moves._params import led_by

SUMMARY = "a shift taken from the first elements of a row instead of a pass over all of it"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.MEMORY_BANDWIDTH, Bottleneck.INSTRUCTION_OVERHEAD, Bottleneck.MEMORY_LATENCY)
SWITCH = "SAMPLE"


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source whose first pass reads only `SAMPLE` elements."""
    if f"define {SWITCH}" in subject.source:
        return "its first pass is a sample already"
    try:
        unit = parse(subject.source, subject.backend)
        for declared in unit.every("init_declarator"):
            if edits := _edits(unit, declared):
                text = edited(unit, edits, subject.backend)
                source = led_by(text, {SWITCH: 64}, subject.backend, {SWITCH: [64, 256]})
                return [
                    Moved(
                        source,
                        "the rough mean of 64 elements, corrected by the pass for the variance",
                        {SWITCH: 64},
                    )
                ]
    except (PlanFault, Unparsed) as error:
        return str(error)
    return "no pass computes a mean that a later pass corrects"


def _edits(unit: Unit, declared: Node) -> list[Edit]:
    """Return the edits for `rough = sum_of(parts) / static_cast<float>(count)` and the pass that filled the parts."""
    name, value = field(declared, "declarator"), field(declared, "value")
    function = enclosing(declared, "function_definition")
    if name is None or value is None or function is None or value.type != "binary_expression":
        return []
    top, bottom, sign = field(value, "left"), field(value, "right"), field(value, "operator")
    if top is None or bottom is None or sign is None or unit.text(sign) != "/" or not unit.names(bottom):
        return []
    rough, count, parts = unit.text(name), unit.names(bottom)[-1], unit.names(top)[-1:]
    passes = [one for one in _passes(unit, function) if count in (unit.text(argument) for argument in one[1])]
    before = [
        one for one in passes if one[0].end_byte < declared.start_byte and parts[0] in unit.names(one[2])
    ]
    after = [one for one in passes if one[0].start_byte > declared.end_byte]
    shifted = [one for one in after if _is_shifted(unit, one[2], rough)]
    # The visitor must do nothing but add: what else it did would be lost for the rest of the row.
    if (
        len(before) != 1
        or len(shifted) < 2
        or len(list(unit.every("expression_statement", within=before[0][2]))) != 1
    ):
        return []
    call, arguments, _ = before[0]
    counted = next(one for one in arguments if unit.text(one) == count)
    divisor = next(one for one in unit.every("identifier", within=bottom) if unit.text(one) == count)
    statement = statement_of(call)
    line = f"const int64_t sampled = {count} < {SWITCH} ? {count} : {SWITCH};\n{unit.indent(statement.start_byte)}"
    return [inserted(statement.start_byte, line), replaced(counted, "sampled"), replaced(divisor, "sampled")]


def _passes(unit: Unit, function: Node) -> list[tuple[Node, list[Node], Node]]:
    """Return the calls in a function that are given a visitor, with arguments and visitor."""
    found = []
    for call in unit.every("call_expression", within=function):
        arguments = field(call, "arguments")
        last = arguments.named_children[-1:] if arguments else []
        if arguments and last and last[0].type == "lambda_expression":
            found.append((call, list(arguments.named_children), last[0]))
    return found


def _is_shifted(unit: Unit, visitor: Node, rough: str) -> bool:
    """Tell whether a visitor works on distances to the rough mean."""
    for difference in unit.every("binary_expression", within=visitor):
        right, sign = field(difference, "right"), field(difference, "operator")
        if right is not None and sign is not None and unit.text(sign) == "-" and unit.text(right) == rough:
            return True
    return False

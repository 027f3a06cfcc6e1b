"""The maximum of a row while it is worked on: chunks with a maximum of their own, brought to the common one at the end.

A softmax of three passes reads its row, reads it again for the exponentials, then scales what it stored. By chunks the
second reading finds the first one's bytes in the nearest cache, and each chunk's scale mends its own maximum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tree_sitter import Node

from kernelwright.core.plan_language import PlanFault
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Edit, Unit, Unparsed, edited, enclosing, field, parse
from kernelwright.moves._params import led_by

SUMMARY = "maximum and exponentials chunk by chunk, each chunk with a maximum of its own"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.CACHE_MISSES, Bottleneck.MEMORY_BANDWIDTH, Bottleneck.MEMORY_LATENCY)
SWITCH, CHUNK = "ROW_CHUNK", 8192
MOST = 64
"""Chunks a row may have: their maxima lie on the stack."""


@dataclass(frozen=True)
class Pass:
    """A statement `sweep(first, count, fill, visitor);`."""

    statement: Node
    callee: str
    source: str
    count: str
    fill: str
    visitor: Node


@dataclass(frozen=True)
class Row:
    """A softmax in three passes: maximum, exponentials and their sum, scaling."""

    opening: Node
    """First statement of the first pass's own variables."""
    highest: Node
    """Declaration of the maximum."""
    name: str
    """What the maximum is called."""
    passes: tuple[Pass, Pass, Pass]


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source whose rows are worked on by chunks."""
    if f"define {SWITCH}" in subject.source:
        return "it goes by chunks already"
    try:
        unit = parse(subject.source, subject.backend)
        for function in unit.every("function_definition"):
            if (row := _row(unit, function)) is not None:
                text = edited(unit, _edits(unit, row), subject.backend)
                if "<cmath>" not in text:
                    text = "#include <cmath>\n" + text
                source = led_by(text, {SWITCH: CHUNK}, subject.backend, {SWITCH: [CHUNK, 4096, 16384]})
                return [Moved(source, f"maximum and exponentials by chunks of {CHUNK}", {SWITCH: CHUNK})]
    except (PlanFault, Unparsed) as error:
        return str(error)
    return "no row is read once for its maximum and once more for exponentials that are stored"


def _pass(unit: Unit, statement: Node) -> Pass | None:
    for call in unit.every("call_expression", within=statement):
        arguments, function = field(call, "arguments"), field(call, "function")
        parts = list(arguments.named_children) if arguments else []
        if call.parent == statement and function and len(parts) == 4 and parts[3].type == "lambda_expression":
            source, count, fill = (unit.text(part) for part in parts[:3])
            return Pass(statement, unit.text(function), source, count, fill, parts[3])
    return None


def _row(unit: Unit, function: Node) -> Row | None:
    """Return the three passes of a function whose second one subtracts the first one's maximum and stores."""
    body = field(function, "body")
    statements = list(body.named_children) if body else []
    passes = [one for statement in statements if (one := _pass(unit, statement))]
    if len(passes) != 3 or {one.count for one in passes} != {passes[0].count}:
        return None
    first, second, third = passes
    between = [
        one for one in statements if first.statement.end_byte <= one.start_byte < second.statement.start_byte
    ]
    named = [one for one in between if one.type == "declaration" and "max_of" in unit.text(one)]
    if len(named) != 1 or first.source != second.source or third.source == first.source:
        return None
    declarator = next(unit.every("init_declarator", within=named[0]))
    name = unit.names(declarator)[0]
    stored = [arguments[0] for _, arguments in unit.calls("store", "store_part", within=second.visitor)]
    if name not in unit.names(second.visitor) or len(stored) != 1 or unit.names(stored[0])[0] != third.source:
        return None
    parts = unit.names(first.visitor)
    own = [
        one
        for one in statements
        if one.end_byte <= first.statement.start_byte and set(unit.names(one)) & set(parts)
    ]
    return Row(own[0] if own else first.statement, named[0], name, (first, second, third)) if own else None


def _edits(unit: Unit, row: Row) -> list[Edit]:
    first, second, third = row.passes
    x, count, pad = first.source, first.count, unit.indent(row.opening.start_byte)
    sums = _sums(unit, row)
    body = unit.data[row.opening.start_byte : row.highest.end_byte].decode()
    maxima = body.replace(f"({x}, {count},", f"({x} + start, here,", 1)
    # Inside a chunk the visitor's own position counts from the chunk's start.
    target = unit.text(
        next(arguments[0] for _, arguments in unit.calls("store", "store_part", within=second.visitor))
    )
    visitor = unit.text(second.visitor).replace(
        target, f"{third.source} + start + {target.split(' + ')[1]}", 1
    )
    visitor = visitor.replace(f"{count} - ", "here - ")
    text = f"""const int64_t fewest = ({count} + {MOST - 1}) / {MOST};
{pad}const int64_t chunk = fewest > {SWITCH} ? (fewest + WIDTH - 1) / WIDTH * WIDTH : {SWITCH};
{pad}float peaks[{MOST}], top = {first.fill};
{pad}double parts[{MOST}];
{pad}for (int64_t start = 0, place = 0; start < {count}; start += chunk, ++place) {{
{pad}    const int64_t here = {count} - start < chunk ? {count} - start : chunk;
{pad}    {maxima.replace(chr(10), chr(10) + "    ")}
{pad}    // A chunk of nothing but -inf has no distance to its maximum: zeros, like everything far below the top.
{pad}    const float {row.name}_here = {row.name} == {first.fill} ? 0.0f : {row.name};
{pad}    {sums};
{pad}    {second.callee}({x} + start, here, {second.fill}, {visitor.replace(row.name, row.name + "_here")});
{pad}    peaks[place] = {row.name};
{pad}    parts[place] = total_of({sums.split()[1].split("[")[0]});
{pad}    if (!({row.name} <= top)) top = {row.name};
{pad}}}
{pad}double total = 0;
{pad}for (int64_t start = 0, place = 0; start < {count}; start += chunk, ++place) {{
{pad}    const double factor = std::exp(static_cast<double>(peaks[place]) - top);
{pad}    total += peaks[place] == {first.fill} && top != {first.fill} ? 0.0 : parts[place] * factor;
{pad}}}"""
    edits = [Edit(row.opening.start_byte, second.statement.end_byte, text)]
    return edits + _scaling(unit, row, pad)


def _sums(unit: Unit, row: Row) -> str:
    """Return the declaration of the sums the second pass fills."""
    statements = [
        one
        for one in unit.every("declaration")
        if row.highest.end_byte <= one.start_byte < row.passes[1].statement.start_byte
    ]
    return unit.text(statements[0]).rstrip(";") if statements else ""


def _scaling(unit: Unit, row: Row, pad: str) -> list[Edit]:
    """Return the edits that scale every chunk by the distance of its own maximum to the common one."""
    _, second, third = row.passes
    function = enclosing(third.statement, "function_definition")
    between = [
        one
        for one in unit.every("declaration", within=function)
        if second.statement.end_byte <= one.start_byte < third.statement.start_byte
    ]
    if not between:
        raise Unparsed("nothing stands between the sum and the scaling")
    setup = unit.data[between[0].start_byte : between[-1].end_byte].decode()
    call = next(
        one for one in unit.every("call_expression", within=between[0]) if "total_of" in unit.text(one)
    )
    start = call.start_byte - between[0].start_byte
    scale = setup[:start] + "total" + setup[start + call.end_byte - call.start_byte :]
    first_line, *rest = scale.split("\n")
    name = unit.names(next(unit.every("init_declarator", within=between[0])))[0]
    own = "".join("\n    " + line for line in rest).replace(name, f"{name}_here")
    count = third.count
    visitor = unit.text(third.visitor).replace(f"{count} - ", "here - ").replace("out + i", "out + start + i")
    text = f"""{first_line}
{pad}for (int64_t start = 0, place = 0; start < {count}; start += chunk, ++place) {{
{pad}    const int64_t here = {count} - start < chunk ? {count} - start : chunk;
{pad}    const double apart = peaks[place] == top ? 1.0 : std::exp(static_cast<double>(peaks[place]) - top);
{pad}    const double {name}_here = {name} * apart;{own}
{pad}    {third.callee}({third.source} + start, here, {third.fill}, {visitor});
{pad}}}"""
    return [Edit(between[0].start_byte, third.statement.end_byte, text)]

"""Takes copies to small buffers out of a loop: values go from memory to vectors, through the arithmetic and back."""

from collections.abc import Sequence
from dataclasses import dataclass

from tree_sitter import Node

from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Edit, Unit, Unparsed, edited, field, parse, replaced

SUMMARY = "vectors in registers instead of blocks copied to buffers, worked on and copied back"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.INSTRUCTION_OVERHEAD, Bottleneck.MEMORY_BANDWIDTH, Bottleneck.MEMORY_LATENCY)


@dataclass(frozen=True)
class Copy:
    """A statement `name(source, target, count);` that copies so many elements."""

    statement: Node
    name: str
    source: str
    target: str
    count: str


@dataclass(frozen=True)
class Stage:
    """A loop over buffers, what fills them and what empties them."""

    loop: Node
    variable: str
    body: tuple[Node, ...]
    loads: tuple[Copy, ...]
    stores: tuple[Copy, ...]


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with every such loop working on memory itself."""
    try:
        unit = parse(subject.source, subject.backend)
        copiers = {name for one in unit.every("function_definition") if (name := _copier(unit, one))}
        stages = [stage for loop in unit.every("for_statement") if (stage := _stage(unit, loop, copiers))]
        if not stages:
            return "no loop works on buffers that are only copied to and from memory"
        edits = [edit for stage in stages for edit in _edits(unit, stage)]
        return [Moved(edited(unit, edits, subject.backend), f"{len(stages)} loops without staging buffers")]
    except Unparsed as error:
        return str(error)


def _copier(unit: Unit, function: Node) -> str | None:
    """Return the name of a function that stores what it loads, element by element."""
    declarator = field(function, "declarator")
    named = field(declarator, "declarator") if declarator else None
    parameters = [unit.names(one)[-1:] for one in unit.every("parameter_declaration", within=function)]
    if named is None or len(parameters) != 3 or not all(parameters):
        return None
    for _, arguments in unit.calls("store", within=function):
        loads = list(unit.calls("load", within=arguments[1])) if len(arguments) == 2 else []
        if loads and loads[0][0].id == arguments[1].id:
            target, source = unit.names(arguments[0]), unit.names(loads[0][1][0])
            if target[:1] == parameters[1] and source[:1] == parameters[0] and target[1:] == source[1:]:
                return unit.text(named)
    return None


def _stage(unit: Unit, loop: Node, copiers: set[str]) -> Stage | None:
    """Return what a loop and its neighbours say, if it reads and writes nothing but buffers, all at its own index."""
    body, start, end = field(loop, "body"), field(loop, "initializer"), field(loop, "condition")
    if (
        body is None
        or start is None
        or end is None
        or loop.parent is None
        or body.type != "compound_statement"
    ):
        return None
    variable, count = unit.names(start)[0], unit.names(end)[-1]
    if any(True for _ in unit.every("call_expression", "for_statement", within=body)):
        return None
    subscripts = list(unit.every("subscript_expression", within=body))
    if not subscripts or any(unit.text(one) != f"{unit.names(one)[0]}[{variable}]" for one in subscripts):
        return None
    written = {
        unit.text(left)
        for one in unit.every("assignment_expression", within=body)
        if (left := field(one, "left"))
    }
    buffers = {unit.names(one)[0]: unit.text(one) in written for one in subscripts}
    siblings = [one for sibling in loop.parent.named_children if (one := _copy(unit, sibling, copiers))]
    loads = tuple(one for one in siblings if one.statement.end_byte <= loop.start_byte)
    stores = tuple(one for one in siblings if one.statement.start_byte >= loop.end_byte)
    is_filled = {one.target for one in loads} == {name for name, is_out in buffers.items() if not is_out}
    is_emptied = {one.source for one in stores} == {name for name, is_out in buffers.items() if is_out}
    is_whole = {one.count for one in siblings} == {count}
    if not (is_filled and is_emptied and is_whole):
        return None
    return Stage(loop, variable, tuple(body.named_children), loads, stores)


def _copy(unit: Unit, statement: Node, copiers: set[str]) -> Copy | None:
    for call, arguments in unit.calls(*copiers, within=statement):
        if statement.type == "expression_statement" and call.parent == statement and len(arguments) == 3:
            function = field(call, "function")
            assert function is not None, "it was found by its name"
            return Copy(statement, unit.text(function), *(unit.text(one) for one in arguments))
    return None


def _edits(unit: Unit, stage: Stage) -> list[Edit]:
    """Return the loop in two parts, whole vectors and single elements, without its copies."""
    j, pad = stage.variable, unit.indent(stage.loop.start_byte)
    inner = pad + "    "
    count = stage.loads[0].count
    loads = "".join(f"{inner}const vec {one.target} = load({one.source} + {j});\n" for one in stage.loads)
    stores = "".join(f"{inner}store({one.target} + {j}, {one.source});\n" for one in stage.stores)
    singles = "".join(
        f"{inner}float {one.target};\n{inner}{one.name}({one.source} + {j}, &{one.target}, 1);\n"
        for one in stage.loads
    )
    back = "".join(f"{inner}{one.name}(&{one.source}, {one.target} + {j}, 1);\n" for one in stage.stores)
    vectors, rest = _body(unit, stage, "vec", inner), _body(unit, stage, "float", inner)
    text = (
        f"int64_t {j} = 0;\n"
        f"{pad}for (; {j} + LANES <= {count}; {j} += LANES) {{\n{loads}{vectors}{stores}{pad}}}\n"
        f"{pad}for (; {j} < {count}; ++{j}) {{\n{singles}{rest}{back}{pad}}}"
    )
    edits = [replaced(stage.loop, text)]
    edits += [Edit(pragma.start, pragma.end + 1, "") for pragma in unit.pragmas_above(stage.loop)]
    for one in (*stage.loads, *stage.stores):
        start = unit.line_start(one.statement.start_byte)
        edits.append(Edit(start, one.statement.end_byte + 1, ""))
    return [*edits, *_unused(unit, stage)]


def _body(unit: Unit, stage: Stage, kind: str, pad: str) -> str:
    """Return the loop's statements on values instead of buffers."""
    lines = []
    for statement in stage.body:
        text, at = unit.text(statement), statement.start_byte
        subscripts = sorted(
            unit.every("subscript_expression", within=statement), key=lambda one: -one.start_byte
        )
        for one in subscripts:
            text = text[: one.start_byte - at] + unit.names(one)[0] + text[one.end_byte - at :]
        is_result = statement.type == "expression_statement"
        text = text.replace("const float ", f"const {kind} ", 1) if not is_result else f"const {kind} {text}"
        lines.append(f"{pad}{text}\n")
    return "".join(lines)


def _unused(unit: Unit, stage: Stage) -> list[Edit]:
    """Return the edit that takes the buffers' declaration away, if it declares nothing else."""
    buffers = {one.target for one in stage.loads} | {one.source for one in stage.stores}
    around = stage.loop.parent
    while around is not None and around.type != "function_definition":
        around = around.parent
    for declaration in unit.every("declaration", within=around) if around else ():
        arrays = [unit.names(one)[0] for one in unit.every("array_declarator", within=declaration)]
        if arrays and set(arrays) == buffers and len(declaration.named_children) == len(arrays) + 1:
            return [Edit(unit.line_start(declaration.start_byte), declaration.end_byte + 1, "")]
    return []

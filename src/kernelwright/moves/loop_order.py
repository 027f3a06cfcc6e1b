"""Another order of independent iterations: parallel loops may be interchanged, or walked from the costly end."""

from collections.abc import Sequence

from tree_sitter import Node

from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Edit, Unit, Unparsed, edited, field, inserted, parse, replaced

SUMMARY = "loops of a nest interchanged, or the tasks handed out last first"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.THREAD_IMBALANCE, Bottleneck.CACHE_MISSES, Bottleneck.MEMORY_BANDWIDTH)
REVERSED = "_up"


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return one source per order: reversed hand-outs first, then neighbouring loops of each nest interchanged."""
    try:
        unit = parse(subject.source, subject.backend)
        loops = list(unit.every("for_statement"))
        found = [moved for loop in loops if (moved := _turned(subject, unit, loop))]
        found += [moved for loop in loops if (moved := _interchanged(subject, unit, loop))]
    except Unparsed as error:
        return str(error)
    return found or "no two loops can change places, and no loop hands out tasks one by one"


def _inner(loop: Node) -> Node | None:
    """Return the loop that is all there is inside a loop."""
    body = field(loop, "body")
    if body is not None and body.type == "compound_statement" and len(body.named_children) == 1:
        body = body.named_children[0]
    return body if body is not None and body.type == "for_statement" else None


def _head(loop: Node) -> tuple[int, int]:
    """Return where a loop's head lies, parentheses included."""
    body = field(loop, "body")
    signs = [
        one
        for one in loop.children
        if one.type in ("(", ")") and (body is None or one.end_byte <= body.start_byte)
    ]
    return signs[0].start_byte, signs[-1].end_byte


def _variable(unit: Unit, loop: Node) -> str | None:
    start = field(loop, "initializer")
    return unit.names(start)[0] if start is not None and unit.names(start) else None


def _interchanged(subject: Subject, unit: Unit, loop: Node) -> Moved | None:
    """Return the source with a loop and the one right inside it exchanged."""
    inner = _inner(loop)
    outer_name = _variable(unit, loop)
    if inner is None or outer_name is None or unit.pragmas_above(inner):
        return None
    first, second = _head(loop), _head(inner)
    texts = [unit.data[start:end].decode() for start, end in (first, second)]
    heads = [
        name
        for part in ("initializer", "condition", "update")
        if (one := field(inner, part))
        for name in unit.names(one)
    ]
    inner_name = _variable(unit, inner)
    if outer_name in heads or inner_name is None or not (_is_parallel(unit, loop) or _is_tiled(loop, inner)):
        return None
    edits = [Edit(*first, texts[1]), Edit(*second, texts[0])]
    line = loop.start_point.row + 1
    return Moved(edited(unit, edits, subject.backend), f"{inner_name} outside {outer_name} in line {line}")


def _is_parallel(unit: Unit, loop: Node) -> bool:
    """Tell whether a loop and the one inside it are dealt out to threads together: their order is then free."""
    depth, outer = 2, loop
    while outer.parent is not None and not unit.pragmas_above(outer) and outer.parent.type == "for_statement":
        outer, depth = outer.parent, depth + 1
    words = " ".join(pragma.text for pragma in unit.pragmas_above(outer))
    return (
        " omp " in words and "collapse(" in words and int(words.split("collapse(")[1].split(")")[0]) >= depth
    )


def _is_tiled(*loops: Node) -> bool:
    """Tell whether every loop goes over tiles: its step is a name. Then at most the order of a sum changes."""
    steps = [field(loop, "update") for loop in loops]
    widths = [
        field(step, "right") for step in steps if step is not None and step.type == "assignment_expression"
    ]
    return len(widths) == len(loops) and all(one is not None and one.type == "identifier" for one in widths)


def _turned(subject: Subject, unit: Unit, loop: Node) -> Moved | None:
    """Return the source in which a loop that hands out tasks begins with the last one."""
    words = " ".join(pragma.text for pragma in unit.pragmas_above(loop))
    if " omp " not in words or "schedule(dynamic" not in words:
        return None
    depth = int(words.split("collapse(")[1].split(")")[0]) if "collapse(" in words else 1
    for _ in range(depth - 1):
        inner = _inner(loop)
        if inner is None:
            return None
        loop = inner
    start, end, step, body = (field(loop, name) for name in ("initializer", "condition", "update", "body"))
    name = _variable(unit, loop)
    last = field(end, "right") if end is not None else None
    if None in (start, end, step, body, name, last) or name is None or name.endswith(REVERSED):
        return None
    assert (
        start is not None and end is not None and step is not None and body is not None and last is not None
    )
    width = field(step, "right")
    unit_step = unit.text(width) if width is not None else "1"
    if not unit.text(start).replace(" ", "").endswith("=0;"):
        return None
    edits = [
        replaced(one, name + REVERSED)
        for part in (start, end, step)
        for one in unit.every("identifier", within=part)
        if unit.text(one) == name
    ]
    rest = (
        f"({unit.text(last)} - 1)"
        if unit_step == "1"
        else f"({unit.text(last)} - 1) / ({unit_step}) * ({unit_step})"
    )
    back = f"const int64_t {name} = {rest} - {name}{REVERSED};"
    if body.type == "compound_statement":
        edits.append(inserted(body.start_byte + 1, f" {back}"))
    else:
        edits += [inserted(body.start_byte, f"{{ {back} "), inserted(body.end_byte, " }")]
    return Moved(edited(unit, edits, subject.backend), f"the last {name} is handed out first")

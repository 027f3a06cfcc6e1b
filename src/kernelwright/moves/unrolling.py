"""More of a loop at a time: more independent sums, and directives for loops the compiler leaves rolled."""

from collections.abc import Sequence

import libcst as cst
from tree_sitter import Node

from kernelwright.core.plan_language import PlanFault, parse_params
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import (
    Edit,
    Pragma,
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
from kernelwright.moves._cst import Kernels, Unreadable, is_call, kernels_of
from kernelwright.moves._params import led_by

SUMMARY = "more independent accumulators, longer unrolled loops"
BACKENDS = ("cpp", "cuda", "triton")
AGAINST = (Bottleneck.INSTRUCTION_OVERHEAD, Bottleneck.MEMORY_LATENCY, Bottleneck.COMPUTE)
FACTOR, MOST = 2, 16
LANES = "LANES"
"""How many elements a vector has, by its name in `kernelwright_vec.h`: a power of two."""


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with a sum per lane, more sums, longer directives, or loads of several steps at once."""
    try:
        if subject.backend == "triton":
            return _pipelined(subject) or "no loop loads what could be loaded several steps at a time"
        found = [*_chains(subject), *_accumulators(subject), *_directives(subject)]
    except (Unparsed, Unreadable, PlanFault) as error:
        return str(error)
    return found or "no lanes are added one by one, and nothing says how far a loop is unrolled"


def _chains(subject: Subject) -> list[Moved]:
    """Return the source in which lanes that were added to one sum have a sum each, added up by halves."""
    if subject.backend != "cpp":
        return []
    unit = parse(subject.source, subject.backend)
    edits = [_by_lane(unit, loop) for loop in unit.every("for_statement")]
    count = sum(bool(one) for one in edits)
    if not count:
        return []
    text = edited(unit, [edit for some in edits for edit in some], subject.backend)
    return [Moved(text, f"{count} chains of additions made one per lane")]


def _by_lane(unit: Unit, loop: Node) -> list[Edit]:
    """Return what changes where a loop over the lanes does nothing but `total += ...`, none where it does more."""
    condition, start, body = (field(loop, name) for name in ("condition", "initializer", "body"))
    bound = field(condition, "right") if condition is not None else None
    added = body.named_children[0] if body is not None and body.type == "expression_statement" else None
    if bound is None or unit.text(bound) != LANES or start is None or added is None:
        return []
    total, term, sign = (field(added, name) for name in ("left", "right", "operator"))
    lane = unit.names(start)[:1]
    if total is None or term is None or sign is None or not lane or unit.text(sign) != "+=":
        return []
    name, whole = unit.text(total), statement_of(loop)
    kind = _declared(unit, whole, name) if total.type == "identifier" else None
    if kind is None or name in unit.names(term) or unit.text(start).replace(" ", "")[-3:] != "=0;":
        return []
    sums, space = f"{name}_by_lane", unit.indent(whole.start_byte)
    folded = (
        f"\n{space}for (int half = {LANES} / 2; half > 0; half /= 2)"
        f"\n{space}    for (int lane = 0; lane < half; ++lane) {sums}[lane] += {sums}[lane + half];"
        f"\n{space}{name} += {sums}[0];"
    )
    return [
        inserted(whole.start_byte, f"{kind} {sums}[{LANES}] = {{}};\n{space}"),
        replaced(total, f"{sums}[{lane[0]}]"),
        inserted(whole.end_byte, folded),
    ]


def _declared(unit: Unit, whole: Node, name: str) -> str | None:
    """Return the type of a floating-point variable declared in the same block as a statement, before it."""
    block = enclosing(whole, "compound_statement")
    for one in unit.every("declaration", within=block) if block is not None else ():
        kind, declarator = field(one, "type"), field(one, "declarator")
        if one.end_byte > whole.start_byte or one.parent != block or kind is None or declarator is None:
            continue
        if unit.names(declarator)[:1] == [name] and unit.text(kind) in ("float", "double"):
            return unit.text(kind)
    return None


def _accumulators(subject: Subject) -> list[Moved]:
    """Return the source led by twice as many independent sums, and by half as many: short rows pay for merging."""
    found = []
    for name, values in parse_params(subject.source).items():
        first = values[0]
        if name.lower() != "unroll" or not isinstance(first, int):
            continue
        for other in (first * FACTOR, first // FACTOR):
            if 1 <= other <= MOST:
                text = led_by(subject.source, {name: other}, subject.backend)
                found.append(Moved(text, f"{other} independent sums instead of {first}", {name: other}))
    return found


def _directives(subject: Subject) -> list[Moved]:
    """Return the source whose numbered unroll directives in CUDA reach twice as far."""
    if subject.backend != "cuda":
        return []
    unit = parse(subject.source, subject.backend)
    edits = [edit for pragma in unit.pragmas if (edit := _longer(pragma))]
    if not edits:
        return []
    return [Moved(edited(unit, edits, subject.backend), f"{len(edits)} loops unrolled twice as far")]


def _longer(pragma: Pragma) -> Edit | None:
    words = pragma.text.split()
    if words[:2] != ["#pragma", "unroll"] or len(words) != 3 or not words[2].isdigit() or int(words[2]) >= 8:
        return None
    return Edit(pragma.end - len(words[2]), pragma.end, str(FACTOR * int(words[2])))


def _pipelined(subject: Subject) -> list[Moved]:
    """Return the source whose plain loops with loads, but without products, are unrolled by the compiler."""
    kernels = kernels_of(subject.source)
    editor = _Unroller(kernels)
    after = kernels.module.visit(editor)
    if not editor.count:
        return []
    return [Moved(after.code, f"{editor.count} loops unrolled by {FACTOR}")]


class _Unroller(cst.CSTTransformer):
    def __init__(self, kernels: Kernels) -> None:
        self.kernels, self.count, self.depth = kernels, 0, 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802 - the library's own name
        return self.kernels.is_kernel(node)

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:  # noqa: N802
        calls = self.kernels.calls(original_node.body)
        loop = updated_node.iter
        if "tl.load" not in calls or "tl.dot" in calls or not is_call(loop, "range"):
            return updated_node
        assert isinstance(loop, cst.Call), "it was found to be one"
        self.count += 1
        factor = cst.Arg(
            cst.Integer(str(FACTOR)),
            keyword=cst.Name("loop_unroll_factor"),
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        return updated_node.with_changes(
            iter=cst.Call(cst.parse_expression("tl.range"), args=[*loop.args, factor])
        )

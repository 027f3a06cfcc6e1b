"""More loads in flight: deeper rings, pipelined loops, and the next row fetched while this one is written."""

from collections.abc import Sequence

import libcst as cst
from tree_sitter import Node

from kernelwright.core.plan_language import PlanFault, parse_params
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Unit, Unparsed, edited, enclosing, field, inserted, output_stores, parse
from kernelwright.moves._cst import Kernels, Unreadable, is_call, kernels_of, keyword
from kernelwright.moves._params import LONGEST, led_by, words_of

SUMMARY = "more stages of loads in flight (GPUs); the next row fetched while this one is written (C++)"
BACKENDS = ("cpp", "triton", "cuda")
AGAINST = (Bottleneck.MEMORY_LATENCY, Bottleneck.TENSOR_CORE_IDLE, Bottleneck.MEMORY_BANDWIDTH)
WORDS = {"stages", "stage"}
DEPTHS = (3, 2, 4)
"""Stages for loops that had none."""
SWITCH = "AHEAD"


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with one stage more than listed, or with its loops of loads pipelined."""
    try:
        if subject.backend == "cpp":
            return _fetched(subject)
        found = _deeper(subject)
        if subject.backend == "triton":
            found += [moved for depth in DEPTHS if (moved := _pipelined(kernels_of(subject.source), depth))]
    except (PlanFault, Unparsed, Unreadable) as error:
        return str(error)
    return found or "no parameter says how many stages there are, and no loop of loads is left plain"


def _fetched(subject: Subject) -> Sequence[Moved] | str:
    """Return the source that asks for the next row of its input beside every vector it writes of this one."""
    if "__builtin_prefetch" in subject.source:
        return "it fetches ahead already"
    unit = parse(subject.source, subject.backend)
    edits = []
    for call, _ in output_stores(unit):
        row = _row(unit, call)
        statement = call.parent
        if row is None or statement is None or statement.type != "expression_statement":
            continue
        source, count, place = row
        fetch = f"__builtin_prefetch({source} + {SWITCH} * {count} + {place});"
        edits += [inserted(statement.start_byte, f"{{ {fetch} "), inserted(statement.end_byte, " }")]
    if not edits:
        return "no loop writes a row of what it reads"
    text = led_by(edited(unit, edits, subject.backend), {SWITCH: 1}, subject.backend, {SWITCH: [1, 2, 0]})
    return [Moved(text, "the next row is fetched while this one is written", {SWITCH: 1})]


def _row(unit: Unit, call: Node) -> tuple[str, str, str] | None:
    """Return input, length and position of the row that a store writes, as they are called there."""
    visitor, loop = enclosing(call, "lambda_expression"), enclosing(call, "for_statement")
    if visitor is not None and visitor.parent is not None and visitor.parent.type == "argument_list":
        given = [unit.text(one) for one in visitor.parent.named_children]
        function = enclosing(visitor, "function_definition")
        rows = [one for one in unit.every("parameter_declaration", within=function) if _is_input(unit, one)]
        last = list(unit.every("parameter_declaration", within=visitor))[-1:]
        names = [unit.names(one)[-1:] for one in (*rows[:1], *last)]
        return (
            (names[0][0], given[1], names[1][0])
            if len(given) == 4 and len(names) == 2 and all(names)
            else None
        )
    condition = field(loop, "condition") if loop is not None else None
    loads = [arguments[0] for _, arguments in unit.calls("load", within=call) if arguments]
    if condition is None or not loads or loads[0].type != "binary_expression":
        return None
    source, place = field(loads[0], "left"), field(loads[0], "right")
    if source is None or place is None or source.type != "identifier" or place.type != "identifier":
        return None
    return unit.text(source), unit.names(condition)[-1], unit.text(place)


def _is_input(unit: Unit, parameter: Node) -> bool:
    """Tell whether a parameter is `const T* name`."""
    kind, declarator = field(parameter, "type"), field(parameter, "declarator")
    is_const = any(child.type == "type_qualifier" for child in parameter.named_children)
    is_pointer = declarator is not None and declarator.type == "pointer_declarator"
    return kind is not None and unit.text(kind) == "T" and is_const and is_pointer


def _deeper(subject: Subject) -> list[Moved]:
    found = []
    for name, values in parse_params(subject.source).items():
        numbers = [one for one in values if isinstance(one, int) and not isinstance(one, bool)]
        if words_of(name) & WORDS and len(numbers) == len(values) and len(values) < LONGEST:
            more = max(numbers) + 1
            text = led_by(subject.source, {name: more}, subject.backend)
            found.append(Moved(text, f"{name} {more}, beyond {sorted(numbers)}", {name: more}))
    return found


def _pipelined(kernels: Kernels, depth: int) -> Moved | None:
    editor = _Pipeliner(kernels, depth)
    after = kernels.module.visit(editor)
    return Moved(after.code, f"{editor.count} loops of loads in {depth} stages") if editor.count else None


class _Pipeliner(cst.CSTTransformer):
    def __init__(self, kernels: Kernels, depth: int) -> None:
        self.kernels, self.depth, self.count = kernels, depth, 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802 - the library's own name
        return self.kernels.is_kernel(node)

    def leave_For(self, original_node: cst.For, updated_node: cst.For) -> cst.For:  # noqa: N802
        calls = self.kernels.calls(original_node.body)
        loop = updated_node.iter
        # Loops with products are pipelined by the launch's own `num_stages`.
        if "tl.load" not in calls or "tl.dot" in calls or not is_call(loop, "range"):
            return updated_node
        assert isinstance(loop, cst.Call), "it was found to be one"
        self.count += 1
        stages = keyword("num_stages", str(self.depth))
        return updated_node.with_changes(
            iter=cst.Call(cst.parse_expression("tl.range"), args=[*loop.args, stages])
        )

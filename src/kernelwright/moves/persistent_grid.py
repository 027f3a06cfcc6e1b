"""Programs that stay: as many as the device holds, each with a loop over the tasks that programs of their own had."""

from collections.abc import Sequence

import libcst as cst

from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cst import (
    Kernels,
    Unreadable,
    entries,
    every,
    is_call,
    kernels_of,
    with_arguments,
    with_entry,
)
from kernelwright.moves._params import led_by

SUMMARY = "a loop over tasks in programs that stay on their multiprocessor"
BACKENDS = ("triton",)
AGAINST = (Bottleneck.LAUNCH_OVERHEAD, Bottleneck.OCCUPANCY, Bottleneck.THREAD_IMBALANCE)
TASK, TASKS, SWITCH = "kw_task", "kw_tasks", "programs"


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return, per kernel with one task per program, the source in which its programs stay."""
    if TASKS in subject.source:
        return "its programs stay already"
    try:
        kernels = kernels_of(subject.source)
        names = list(dict.fromkeys(kernels.launched()))
        found = [moved for name in names if (moved := _moved(subject, kernels, name))]
    except Unreadable as error:
        return str(error)
    return found or "no kernel has one task per program and nothing else in its way"


def _moved(subject: Subject, kernels: Kernels, name: str) -> Moved | None:
    function = next((one for one in kernels.functions() if one.name.value == name), None)
    if function is None or not _is_simple(kernels, function):
        return None
    editor = _Stayer(name)
    text = kernels.module.visit(editor).code
    if not editor.launches or editor.is_odd:
        return None
    source = led_by(text, {SWITCH: 4}, subject.backend, {SWITCH: [4, 2, 8]})
    return Moved(source, f"programs of {name} stay, 4 per multiprocessor", {SWITCH: 4})


def _is_simple(kernels: Kernels, function: cst.FunctionDef) -> bool:
    """Tell whether a kernel asks once for its place in a line of programs and changes none of its arguments."""
    places = [call for call in every(function.body, cst.Call) if is_call(call, "tl.program_id")]
    if len(places) != 1 or kernels.text(places[0]) != "tl.program_id(0)":
        return False
    if "tl.num_programs" in kernels.calls(function.body) or every(function.body, cst.Return):
        return False
    given = {one.name.value for one in function.params.params}
    changed = {
        one.target.value for one in every(function.body, cst.AugAssign) if isinstance(one.target, cst.Name)
    }
    for assignment in every(function.body, cst.Assign):
        changed |= {name.value for one in assignment.targets for name in every(one.target, cst.Name)}
    return not given & changed


class _Stayer(cst.CSTTransformer):
    def __init__(self, name: str) -> None:
        self.name, self.launches, self.is_odd = name, 0, False

    def leave_FunctionDef(  # noqa: N802 - the library's own name
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        if original_node.name.value != self.name or not isinstance(updated_node.body, cst.IndentedBlock):
            return updated_node
        placed = updated_node.body.visit(_Placed())
        assert isinstance(placed, cst.IndentedBlock), "only names inside it changed"
        outside, inside = _parted(placed.body)
        task = cst.parse_expression(f"range(tl.program_id(0), {TASKS}, tl.num_programs(0))")
        loop = cst.For(cst.Name(TASK), task, cst.IndentedBlock(inside))
        return updated_node.with_changes(
            params=_with_tasks(updated_node.params),
            body=updated_node.body.with_changes(body=[*outside, loop]),
        )

    def leave_Dict(self, original_node: cst.Dict, updated_node: cst.Dict) -> cst.Dict:  # noqa: N802, ARG002
        parts = entries(updated_node)
        kernel = parts.get("kernel")
        if kernel is None or not any(
            one.evaluated_value == self.name for one in every(kernel, cst.SimpleString)
        ):
            return updated_node
        grid, arguments = parts.get("grid"), parts.get("args")
        is_line = isinstance(grid, cst.Tuple) and len(grid.elements) == 1
        if not isinstance(kernel, cst.SimpleString) or not is_line or arguments is None:
            self.is_odd = True
            return updated_node
        assert isinstance(grid, cst.Tuple), "it is a line"
        self.launches += 1
        tasks = cst.Module([]).code_for_node(grid.elements[0].value)
        staying = with_entry(updated_node, "args", with_arguments(arguments, [tasks]))
        limited = cst.parse_expression(f"(min({tasks}, params.{SWITCH} * device.units),)")
        return with_entry(staying, "grid", limited)


class _Placed(cst.CSTTransformer):
    def leave_Call(  # noqa: N802 - the library's own name
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> cst.BaseExpression:
        return cst.Name(TASK) if is_call(original_node, "tl.program_id") else updated_node


def _with_tasks(params: cst.Parameters) -> cst.Parameters:
    """Return the parameters with the number of tasks after the last one that is not a constant."""
    given = list(params.params)
    place = next((at for at, one in enumerate(given) if one.annotation is not None), len(given))
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if place and not isinstance(given[place - 1].comma, cst.Comma):
        given[place - 1] = given[place - 1].with_changes(comma=comma)
    follows = place < len(given)
    new = cst.Param(cst.Name(TASKS), comma=comma if follows else cst.MaybeSentinel.DEFAULT)
    return params.with_changes(params=[*given[:place], new, *given[place:]])


def _parted(
    body: Sequence[cst.BaseStatement],
) -> tuple[list[cst.BaseStatement], list[cst.BaseStatement]]:
    """Return what stays in front of the loop, words and constants, and what goes into it."""
    outside: list[cst.BaseStatement] = []
    inside: list[cst.BaseStatement] = []
    for statement in body:
        first = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        is_word = isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
        # A constant may be bound once only: inside a loop it would be bound again.
        (outside if is_word or isinstance(first, cst.AnnAssign) else inside).append(statement)
    return outside, inside

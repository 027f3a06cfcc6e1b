"""More of a loop at a time: more independent sums, and directives for loops the compiler leaves rolled."""

from collections.abc import Sequence

import libcst as cst

from kernelwright.core.plan_language import PlanFault, parse_params
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Edit, Pragma, Unparsed, edited, parse
from kernelwright.moves._cst import Kernels, Unreadable, is_call, kernels_of
from kernelwright.moves._params import led_by

SUMMARY = "more independent accumulators, longer unrolled loops"
BACKENDS = ("cpp", "cuda", "triton")
AGAINST = (Bottleneck.INSTRUCTION_OVERHEAD, Bottleneck.MEMORY_LATENCY, Bottleneck.COMPUTE)
FACTOR, MOST = 2, 16


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return the source with twice as many sums, twice as long directives, or loads of several steps at once."""
    try:
        if subject.backend == "triton":
            return _pipelined(subject) or "no loop loads what could be loaded several steps at a time"
        found = [*_accumulators(subject), *_directives(subject)]
    except (Unparsed, Unreadable, PlanFault) as error:
        return str(error)
    return found or "no parameter or directive says how far a loop is unrolled"


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

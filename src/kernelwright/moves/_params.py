"""Switches as `PARAMS`: a move that only needs another value, or a new name, says so there and nowhere else."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence

import libcst as cst

from kernelwright.core.candidate import ParamValue
from kernelwright.core.plan_language import CLOSING, OPENING, PlanFault, parse_params
from kernelwright.core.ports import Moved

Grid = Mapping[str, Sequence[ParamValue]]
LONGEST = 5
"""Values of a parameter beyond which a move adds no more: the grid is the tuner's to search."""


def with_params(source: str, changes: Grid, backend: str) -> str:
    """Return a source whose `PARAMS` has these lists of values, new names last; C++ gets their macros too."""
    known = parse_params(source)
    start = source.find(OPENING)
    if start < 0 and backend == "cpp":
        return with_params(f"{OPENING}\nPARAMS = {{}}\n{CLOSING}\n{source}", changes, backend)
    if start < 0:
        return _rewritten(source, changes)
    start += len(OPENING)
    end = source.find(CLOSING, start)
    text = source[:start] + _rewritten(source[start:end], changes) + source[end:]
    if backend != "cpp":
        return text
    after = text.find(CLOSING, start) + len(CLOSING)
    fresh = [name for name in changes if name not in known]
    macros = "".join(f"\n#ifndef {name}\n#define {name} {_macro(changes[name][0])}\n#endif" for name in fresh)
    return text[:after] + ("\n" + macros if macros else "") + text[after:]


def led_by(source: str, first: Mapping[str, ParamValue], backend: str, others: Grid | None = None) -> str:
    """Return a source in which these values are the author's own choice; those known before follow."""
    known = parse_params(source)
    lists = {
        name: [value, *(one for one in (others or {}).get(name, known.get(name, ())) if one != value)]
        for name, value in first.items()
    }
    return with_params(source, lists, backend)


def widened(
    source: str, backend: str, is_named: Callable[[str], bool], steps: Sequence[float]
) -> Iterator[tuple[str, ParamValue, Moved]]:
    """Yield, per parameter with a name of that kind and per step, a source led by the next value beyond its list.

    A step of 2 doubles the largest value, one of 0.5 halves the smallest; what does not stay a positive whole number is
    left out.
    """
    for name, values in parse_params(source).items():
        numbers = [one for one in values if isinstance(one, int) and not isinstance(one, bool) and one > 0]
        if not is_named(name) or len(numbers) != len(values) or len(values) >= LONGEST:
            continue
        for step in steps:
            value = int((max(numbers) if step > 1 else min(numbers)) * step)
            if value >= 1 and value not in numbers:
                text = led_by(source, {name: value}, backend)
                yield name, value, Moved(text, f"{name} {value}, beyond {sorted(numbers)}", {name: value})


def words_of(name: str) -> set[str]:
    """Return the words of a parameter's name, in lower case."""
    return set(name.lower().split("_"))


def _macro(value: ParamValue) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _rewritten(python: str, changes: Grid) -> str:
    """Return Python with those entries in its `PARAMS`; only that statement is parsed with its layout."""
    try:
        body = ast.parse(python).body
        lines = python.splitlines(keepends=True)
        for node in body:
            if isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == ["PARAMS"]:
                first, last = node.lineno - 1, node.end_lineno or node.lineno
                module = cst.parse_module("".join(lines[first:last]))
                return "".join([*lines[:first], module.visit(_Editor(changes)).code, *lines[last:]])
    except (SyntaxError, ValueError, RecursionError, cst.ParserSyntaxError) as error:
        raise PlanFault(f"not valid Python: {error}") from error
    # After the words a file opens with and its imports, as a person would write it.
    head = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)]
    place = max((node.end_lineno or node.lineno for node in head), default=0)
    grid = {name: [*values] for name, values in changes.items()}
    return "".join([*lines[:place], f"PARAMS = {grid!r}\n", *lines[place:]])


class _Editor(cst.CSTTransformer):
    def __init__(self, changes: Grid) -> None:
        self.changes = changes

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:  # noqa: N802, ARG002
        value = updated_node.value
        if not isinstance(value, cst.Dict):
            return updated_node
        entries: list[cst.BaseDictElement] = []
        waiting = dict(self.changes)
        for entry in value.elements:
            name = entry.key.evaluated_value if _is_named(entry) else None  # type: ignore[attr-defined]
            if isinstance(name, str) and name in waiting:
                entry = entry.with_changes(value=cst.parse_expression(repr([*waiting.pop(name)])))
            entries.append(entry)
        if waiting and entries:
            entries[-1] = entries[-1].with_changes(comma=_comma(entries))
        for name, values in waiting.items():
            last = cst.parse_expression(repr([*values]))
            entries.append(
                cst.DictElement(
                    cst.SimpleString(f'"{name}"'), last, comma=_comma(value.elements, is_last=True)
                )
            )
        return updated_node.with_changes(value=value.with_changes(elements=entries))


def _is_named(entry: cst.BaseDictElement) -> bool:
    return isinstance(entry, cst.DictElement) and isinstance(entry.key, cst.SimpleString)


def _comma(entries: Sequence[cst.BaseDictElement], *, is_last: bool = False) -> cst.Comma | cst.MaybeSentinel:
    """Return the comma of an entry: as the one before it has it, so that a column stays a column."""
    first = entries[0].comma if entries else cst.MaybeSentinel.DEFAULT
    last = entries[-1].comma if entries else cst.MaybeSentinel.DEFAULT
    if is_last:
        return last
    if isinstance(first, cst.Comma):
        return first
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))

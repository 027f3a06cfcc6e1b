"""The small language of `plan(case, params, device)`: Python syntax, checked on the AST, interpreted by us.

1. `parse_plan` finds the function in a candidate's source and refuses every construct outside the subset.
2. `run_plan` (core/plan_run.py) walks the checked tree over plain data; no Python executes it.
3. The returned dict becomes a `LaunchPlan`; `{"unsupported": reason}` declines the case by name.

In a CUDA C++ or C++ file, `PARAMS` and `plan` stand in a block comment that opens with `/*kernelwright`.

The subset: assignments to names (also tuples of names), if / return, conditional expressions, arithmetic,
comparisons, boolean logic, tuples, lists, dicts, subscripts, attribute access on the data, f-less strings, and calls
of `cdiv, next_power_of_2, min, max, abs, int, float, bool, len, round`. No loops, no comprehensions: a plan ends.
"""

import ast
import math
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from kernelwright.core.candidate import ParamValue

MAX_NODES = 4000
MAX_INTEGER = 1 << 63
PARSED_PLANS = 64
"""Parsed plans kept: one evaluation asks for the same one a hundred times, at 5 ms each."""


class PlanFault(ValueError):
    """What is wrong with a candidate's plan, with its own line number; becomes a `Status`, never an engine error."""

    def __init__(self, problem: str, node: ast.AST | None = None) -> None:
        line = getattr(node, "lineno", None)
        text = problem.encode(errors="backslashreplace").decode()
        super().__init__(f"line {line}: {text}" if line else text)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _round(number: float, digits: int | None = None) -> float:
    if digits is not None and abs(digits) > 20:
        raise ValueError("round to at most 20 digits")
    return round(number, digits)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cdiv": _cdiv,
    "next_power_of_2": _next_power_of_2,
    "min": min,
    "max": max,
    "abs": abs,
    "int": int,
    "float": float,
    "bool": bool,
    "len": len,
    "round": _round,
}
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
ALLOWED: tuple[type[ast.AST], ...] = (
    *(ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.If, ast.Return, ast.Expr, ast.Pass),
    *(
        ast.Name,
        ast.Load,
        ast.Store,
        ast.Constant,
        ast.Tuple,
        ast.List,
        ast.Dict,
        ast.Subscript,
        ast.Attribute,
    ),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.IfExp, ast.Call),
    *BINARY,
    *COMPARE,
    *UNARY,
)


OPENING, CLOSING = "/*kernelwright", "*/"


def python_part(source: str) -> str:
    """Return the Python of a source: all of it, or the block comment of a C-like file, line numbers kept."""
    start = source.find(OPENING)
    if start < 0:
        return source
    end = source.find(CLOSING, start)
    if end < 0:
        raise PlanFault(f"the comment {OPENING!r} is never closed")
    return "\n" * source.count("\n", 0, start) + source[start + len(OPENING) : end]


def _module(source: str) -> ast.Module:
    try:
        return ast.parse(python_part(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PlanFault(f"not valid Python: {error}") from error


def parse_params(source: str) -> dict[str, list[ParamValue]]:
    """Return the literal `PARAMS = {name: [values]}` of a source, empty if there is none."""
    for node in _module(source).body if "PARAMS" in source else ():
        if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == ["PARAMS"]:
            try:
                params = ast.literal_eval(node.value)
            except (ValueError, TypeError, RecursionError) as error:
                raise PlanFault("PARAMS must be a literal dict of lists", node) from error
            if not isinstance(params, dict) or not all(
                isinstance(key, str) and isinstance(values, list) and values and all(map(is_param, values))
                for key, values in params.items()
            ):
                raise PlanFault("PARAMS must map each name to a non-empty list of values", node)
            return params
    return {}


def is_param(value: object) -> bool:
    """Tell whether a literal can be a parameter: a finite number or text a file can hold."""
    if isinstance(value, str):
        return value.isascii() or not any(0xD800 <= ord(letter) < 0xE000 for letter in value)
    return isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def first_values(source: str) -> dict[str, ParamValue]:
    """Return the first value of every parameter: the author's own choice before any tuning."""
    return {name: values[0] for name, values in parse_params(source).items()}


@lru_cache(maxsize=PARSED_PLANS)
def parse_plan(source: str) -> ast.FunctionDef:
    """Return the checked `plan` function of a candidate's source; the tree is shared and must not be changed."""
    module = _module(source)
    found = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "plan"]
    if len(found) != 1:
        raise PlanFault(f"{len(found)} top-level functions named 'plan'; exactly one is needed")
    _check(found[0])
    return found[0]


def named_kernels(plan: ast.FunctionDef) -> frozenset[str]:
    """Return the kernels a plan may launch, as far as their names stand in its text."""
    pairs = [
        pair
        for node in ast.walk(plan)
        if isinstance(node, ast.Dict)
        for pair in zip(node.keys, node.values, strict=True)
    ]
    values = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "kernel"]
    words = [node.value for value in values for node in ast.walk(value) if isinstance(node, ast.Constant)]
    return frozenset(word for word in words if isinstance(word, str))


def _check(function: ast.FunctionDef) -> None:
    """Refuse everything outside the subset."""
    args = function.args
    names = [arg.arg for arg in args.args]
    extras = [
        args.posonlyargs,
        args.kwonlyargs,
        args.defaults,
        args.vararg,
        args.kwarg,
        function.decorator_list,
    ]
    if names != ["case", "params", "device"] or any(extras):
        raise PlanFault("the signature must be exactly plan(case, params, device)", function)
    nodes = list(ast.walk(function))
    if len(nodes) > MAX_NODES:
        raise PlanFault(f"{len(nodes)} syntax nodes; at most {MAX_NODES} are allowed", function)
    for node in nodes:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ALLOWED):
                place = child if hasattr(child, "lineno") else node  # operators have no place of their own
                raise PlanFault(f"{type(child).__name__} is outside the plan subset", place)
        if isinstance(node, ast.FunctionDef) and node is not function:
            raise PlanFault("nested functions are outside the plan subset", node)
        if isinstance(node, ast.Call) and not (
            isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        ):
            raise PlanFault(f"only these can be called: {', '.join(FUNCTIONS)}", node)
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool | int | float | str | None):
            raise PlanFault(f"constant {node.value!r} is outside the plan subset", node)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            raise PlanFault(f"attribute {node.attr!r} is outside the plan subset", node)

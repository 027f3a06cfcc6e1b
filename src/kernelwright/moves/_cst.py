"""Python kernels as a syntax tree that keeps every byte: which functions are kernels, and what a plan launches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import TypeVar

import libcst as cst

Kind = TypeVar("Kind", bound=cst.CSTNode)

PARSED = 64
"""Parsed sources kept: every move of a brief looks at the same one, at 10 ms each."""


class Unreadable(ValueError):
    """A Python source that cannot be parsed: no move applies to it."""


@dataclass(frozen=True)
class Kernels:
    """A parsed source with kernels and a plan."""

    module: cst.Module

    def is_kernel(self, node: cst.FunctionDef) -> bool:
        """Tell whether a function is compiled for the device."""
        words = [self.text(one.decorator) for one in node.decorators]
        return any(word.split("(")[0].endswith("jit") for word in words)

    def functions(self) -> Iterator[cst.FunctionDef]:
        """Yield the kernels and what they call."""
        for node in self.module.body:
            if isinstance(node, cst.FunctionDef) and self.is_kernel(node):
                yield node

    def launched(self) -> list[str]:
        """Return the names a plan launches, as far as they stand in its text."""
        found: list[str] = []
        for launch in launches(self.plan()):
            found += [
                text.evaluated_value
                for text in every(launch["kernel"], cst.SimpleString)
                if isinstance(text.evaluated_value, str)
            ]
        return found

    def plan(self) -> cst.FunctionDef:
        """Return the plan."""
        for node in self.module.body:
            if isinstance(node, cst.FunctionDef) and node.name.value == "plan":
                return node
        raise Unreadable("there is no plan")

    def text(self, node: cst.CSTNode) -> str:
        """Return the source of a node."""
        return self.module.code_for_node(node)

    def calls(self, node: cst.CSTNode) -> set[str]:
        """Return the functions called in a node, as they are spelled."""
        return {self.text(call.func) for call in every(node, cst.Call)}


@lru_cache(maxsize=PARSED)
def kernels_of(source: str) -> Kernels:
    """Return a parsed source; raises `Unreadable`."""
    try:
        return Kernels(cst.parse_module(source))
    except cst.ParserSyntaxError as error:
        raise Unreadable(f"not valid Python: {error.message}") from error


def every(node: cst.CSTNode, kind: type[Kind]) -> list[Kind]:
    """Return all nodes of a kind, in the order of the text."""
    # Over the fields: the library's own `children` visits and rebuilds, at ten times the price.
    found: list[Kind] = []
    waiting: list[object] = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, cst.CSTNode):
            if isinstance(one, kind):
                found.append(one)
            waiting.extend(getattr(one, name) for name in reversed(_parts(type(one))))
        elif isinstance(one, tuple | list):
            waiting.extend(reversed(one))
    return found


@cache
def _parts(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Return the names of a node's fields, in the order of the text as far as it matters here."""
    return tuple(one.name for one in fields(kind))


def is_call(node: cst.CSTNode, *names: str) -> bool:
    """Tell whether a node calls one of these functions, by plain or dotted name."""
    return isinstance(node, cst.Call) and dotted(node.func) in names


def dotted(node: cst.BaseExpression) -> str:
    """Return `a.b.c` as text; empty for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        return f"{dotted(node.value)}.{node.attr.value}"
    return ""


def launches(plan: cst.FunctionDef) -> list[dict[str, cst.BaseExpression]]:
    """Return the entries of every launch that stands in a plan."""
    return [parts for found in every(plan, cst.Dict) if "kernel" in (parts := entries(found))]


def entries(node: cst.Dict) -> dict[str, cst.BaseExpression]:
    """Return the values of a literal dict by their literal keys."""
    found: dict[str, cst.BaseExpression] = {}
    for one in node.elements:
        if isinstance(one, cst.DictElement) and isinstance(one.key, cst.SimpleString):
            name = one.key.evaluated_value
            if isinstance(name, str):
                found[name] = one.value
    return found


def with_entry(node: cst.Dict, name: str, value: cst.BaseExpression) -> cst.Dict:
    """Return a literal dict with one entry set to an expression."""
    elements: list[cst.BaseDictElement] = []
    is_set = False
    for one in node.elements:
        is_named = isinstance(one, cst.DictElement) and isinstance(one.key, cst.SimpleString)
        if is_named and one.key.evaluated_value == name:  # type: ignore[attr-defined]
            one, is_set = one.with_changes(value=value), True
        elements.append(one)
    if not is_set:
        if elements and not isinstance(elements[-1].comma, cst.Comma):
            elements[-1] = elements[-1].with_changes(
                comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            )
        elements.append(
            cst.DictElement(cst.SimpleString(f'"{name}"'), value, comma=cst.MaybeSentinel.DEFAULT)
        )
    return node.with_changes(elements=elements)


def with_arguments(node: cst.BaseExpression, texts: Sequence[str]) -> cst.BaseExpression:
    """Return a list expression with more items at its end."""
    more = cst.parse_expression("[" + ", ".join(texts) + "]")
    return cst.BinaryOperation(node, cst.Add(), more)


def keyword(name: str, text: str) -> cst.Arg:
    """Return an argument passed by name."""
    plain = cst.SimpleWhitespace("")
    return cst.Arg(cst.parse_expression(text), keyword=cst.Name(name), equal=cst.AssignEqual(plain, plain))

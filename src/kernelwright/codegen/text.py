"""Indices and expressions as the C family of languages writes them."""

import re
from collections.abc import Callable, Mapping

from kernelwright.codegen.indices import Atom, Index, Looked, Quotient, Variable
from kernelwright.codegen.values import Counted, Expression, Made, Read

Reading = Callable[[Read], str]
"""How an element of a buffer is written."""


def index_text(index: Index, reading: Reading, over: str = "/") -> str:
    """Return an index; `over` is the sign of a division that rounds down."""
    words = ""
    for atom, factor in index.terms:
        text = _atom(atom, reading, over)
        size = abs(factor)
        term = text if size == 1 else f"{text} * {size}"
        words += (
            (f" - {term}" if factor < 0 else f" + {term}") if words else f"-{term}" if factor < 0 else term
        )
    if index.constant or not words:
        size = abs(index.constant)
        words = f"{words} {'-' if index.constant < 0 else '+'} {size}" if words else str(index.constant)
    return words


def _atom(atom: Atom, reading: Reading, over: str) -> str:
    if isinstance(atom, Variable):
        return atom.name
    if isinstance(atom, Looked):
        return expression_text(atom.expression, reading)
    inner = index_text(atom.index, reading, over)
    inner = inner if inner.isidentifier() else f"({inner})"
    return f"({inner} {over if isinstance(atom, Quotient) else '%'} {atom.by})"


def expression_text(expression: Expression, reading: Reading) -> str:
    """Return an expression in C++."""
    if isinstance(expression, Read):
        return reading(expression)
    if isinstance(expression, Counted):
        return f"int64_t({index_text(expression.index, reading)})"
    if isinstance(expression, Made):
        return expression.text.format(*(expression_text(one, reading) for one in expression.given))
    first, then = (expression_text(one, reading) for one in (expression.first, expression.then))
    return f"({index_text(expression.index, reading)} < {expression.below} ? {first} : {then})"


def called(body: str, functions: Mapping[str, str]) -> list[str]:
    """Return the functions a text calls, and those they call, in the order of the table."""
    text, found = body, set[str]()
    while more := {name for name in functions if _is_called(name, text)} - found:
        found |= more
        text += "".join(functions[name] for name in sorted(more))
    return [functions[name] for name in functions if name in found]


def _is_called(name: str, text: str) -> bool:
    """Tell whether a text calls the function of that name, and not one whose name only ends in it."""
    return re.search(rf"(?<![\w:]){name}(<\w+>)?\(", text) is not None

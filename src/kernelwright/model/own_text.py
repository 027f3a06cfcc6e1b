"""A function's own source as a text that runs by itself: the function, what it calls, and the names it reads.

Only what stands at the top of the function's own file is taken, and imports of torch and of the standard library. What
needs more has no text of its own here.
"""

import ast
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

KNOWN = {"torch", "numpy", *sys.stdlib_module_names}
IMPORT = "import torch"


class NoOwnText(ValueError):
    """Why a function's source does not run by itself, in words."""


def own_text(function: types.FunctionType) -> str:
    """Return the function and all it needs as the text of a file."""
    name = function.__qualname__
    if not name.isidentifier():
        raise NoOwnText("it is defined inside something else")
    try:
        source = inspect.getsource(inspect.getmodule(function) or function)
    except (OSError, TypeError) as error:
        raise NoOwnText("its file cannot be read") from error
    bound = _bound(ast.parse(source))
    needed: dict[str, ast.stmt] = {}
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in needed or one not in bound:
            continue
        needed[one] = bound[one]
        if isinstance(bound[one], ast.Import | ast.ImportFrom):
            _check_import(bound[one])
        else:
            waiting += _names(bound[one], is_first=one == name)
    return _put_together(source, needed)


def _bound(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return what stands at the top of a file, by the names it binds."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0]: node for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def _check_import(node: ast.stmt) -> None:
    """Refuse an import that another process may not have."""
    if isinstance(node, ast.ImportFrom):
        places = [node.module or ""] if not node.level else ["."]
    else:
        places = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    for place in places:
        if place.split(".")[0] not in KNOWN:
            raise NoOwnText(f"it needs {place!r}")


def _names(node: ast.stmt, *, is_first: bool) -> Iterator[str]:
    """Yield the names a definition reads; decorators of the function itself are left out."""
    parts: list[ast.AST] = [node]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        if node.decorator_list and not is_first:
            raise NoOwnText(f"{node.name} is decorated")
        rest = [*node.body, *node.bases] if isinstance(node, ast.ClassDef) else [*node.body, node.args]
        parts = [*rest, *([node.returns] if isinstance(node, ast.FunctionDef) and node.returns else [])]
    for part in parts:
        for one in ast.walk(part):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
                yield one.id


def _put_together(source: str, needed: dict[str, ast.stmt]) -> str:
    nodes = sorted({id(node): node for node in needed.values()}.values(), key=lambda node: node.lineno)
    imports, rest = [IMPORT], []
    for node in nodes:
        text = ast.get_source_segment(source, node) or ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += [text] if text not in imports else []
        else:
            rest.append(text)
    head = "\n".join(sorted(imports, key=lambda text: not text.startswith("from __future__")))
    return head + "\n\n\n" + "\n\n\n".join(rest) + "\n"


def runs_alike(
    text: str, name: str, arguments: tuple[tuple[Any, ...], dict[str, Any]], expected: list[Any]
) -> bool:
    """Tell whether a text by itself gives the function's answer to the bit."""
    import torch

    space: dict[str, Any] = {"__name__": "own_text"}
    try:
        exec(compile(text, "<own text>", "exec"), space)
        with torch.no_grad():
            answer = space[name](*arguments[0], **arguments[1])
    except (NameError, ImportError, AttributeError, TypeError, RuntimeError, ValueError):
        return False
    found = list(answer) if isinstance(answer, tuple | list) else [answer]
    return len(found) == len(expected) and all(map(torch.equal, found, expected))

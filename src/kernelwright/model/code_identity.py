"""What a function's answer depends on besides its arguments: its code, that of functions it calls, and plain globals.

Identity is taken from what Python made of the source, not from the file: that may have been edited since. Comments,
decorators and line numbers do not count. Another minor version of Python gives another identity.
"""

import builtins
import dis
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernelwright.core.frozen import digest

PLAIN = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Identity:
    """A function's code and surroundings."""

    name: str
    """File, without its folder, and name of the function."""
    fingerprint: str
    watched: tuple[Callable[[], Any], ...]
    """Plain globals and closed-over values it reads: a call must find them as they were."""
    hindrance: str = ""
    """What it reads that cannot be watched, in words; empty if nothing."""

    def surroundings(self) -> tuple[Any, ...]:
        """Return the watched values now, told apart by type: 1, 1.0 and True are equal in Python."""
        return tuple((type(value), value) for value in (get() for get in self.watched))


def plain(function: Any) -> Any:
    """Return the function behind decorators that say what they wrap."""
    while not isinstance(function, types.FunctionType) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def identity(function: Callable[..., Any]) -> Identity:
    """Return what a function's answer depends on besides its arguments."""
    seen: dict[int, types.FunctionType] = {}
    parts: list[str] = []
    watched: list[Callable[[], Any]] = []
    hindrance = ""
    waiting = [plain(function)]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen[id(one)] = one
        parts.append(_code_text(one.__code__))
        for name, get in _reads(one):
            value = plain(get())
            if is_plain(value):
                parts.append(f"{name}={value!r}")
                watched.append(get)
            elif isinstance(value, types.FunctionType) and not _is_torch(value):
                waiting.append(value)
            elif not _is_code(value) and not hindrance:
                hindrance = f"{one.__name__} reads {name!r}, a {type(value).__name__} that is no argument"
    first = plain(function)
    home = Path(first.__code__.co_filename).name
    return Identity(f"{home}:{first.__qualname__}", digest("\n".join(parts)), tuple(watched), hindrance)


def is_plain(value: Any) -> bool:
    """Tell whether a value is a number, a text, a type of torch's, or a tuple of such."""
    if type(value) is tuple:
        return all(is_plain(item) for item in value)
    return type(value) in PLAIN


def _reads(function: types.FunctionType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the names a function reads from outside, with what gets their value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, partial(_content, cell)
    names = {name: None for code in _codes(function.__code__) for name in _global_names(code)}
    space = function.__globals__
    for name in names:
        if name in space:
            yield name, partial(space.get, name)
        elif not hasattr(builtins, name):
            yield name, lambda: None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is bound later, such as the function's own
        return None


def _global_names(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(step.argval)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _is_code(value: Any) -> bool:
    """Tell whether a value is a module, a class or a function, which are taken as they are."""
    if isinstance(value, torch.Tensor | torch.nn.Module):
        return False
    kinds = (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType)
    return isinstance(value, kinds) or (type(value).__module__ or "").split(".")[0] in ("torch", "typing")


def _is_torch(function: types.FunctionType) -> bool:
    return (function.__module__ or "").split(".")[0] == "torch"


def _code_text(code: types.CodeType) -> str:
    consts = [
        _code_text(one)
        if isinstance(one, types.CodeType)
        else repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)
        for one in code.co_consts
    ]
    shape = (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars)
    return f"{shape}{names}{code.co_code.hex()}{code.co_exceptiontable.hex()}{consts}"

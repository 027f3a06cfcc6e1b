"""Drawers: the file's name is its registration, entry points serve third parties, nothing loads until asked for."""

import importlib
import pkgutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from kernelwright.core.errors import AmbiguousName, BrokenPlugin, UnknownName

DRAWERS = {"ops": "op", "backends": "backend", "strategies": "strategy", "agents": "agent", "moves": "move"}
"""Folder name to the word for one thing in it."""


def _own_files(drawer: str) -> set[str]:
    """Return the module names in a drawer of this package; a leading underscore means shared, not registered."""
    try:
        package = importlib.import_module(f"kernelwright.{drawer}")
    except ModuleNotFoundError:
        return set()
    return {info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_")}


def _entry_points(drawer: str) -> dict[str, EntryPoint]:
    """Return third parties' things by name, refusing two with the same name."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=f"kernelwright.{drawer}"):
        if point.name in found and found[point.name].value != point.value:
            raise AmbiguousName(drawer, point.name)
        found[point.name] = point
    return found


def names(drawer: str) -> list[str]:
    """Return every name in a drawer, sorted, without importing any of them."""
    if drawer not in DRAWERS:
        raise UnknownName("drawer", drawer, tuple(DRAWERS))
    own, foreign = _own_files(drawer), _entry_points(drawer)
    for clash in own & foreign.keys():
        raise AmbiguousName(drawer, clash)
    return sorted(own | foreign.keys())


@cache
def load(drawer: str, name: str) -> ModuleType:
    """Import one thing of a drawer by its name; looking it up reads the metadata of every installed package, once."""
    if name not in (known := names(drawer)):
        raise UnknownName(DRAWERS[drawer], name, known)
    try:
        if point := _entry_points(drawer).get(name):
            loaded = point.load()
            if not isinstance(loaded, ModuleType):
                raise BrokenPlugin(
                    drawer, name, f"its entry point is a {type(loaded).__name__}, not a module"
                )
            return loaded
        return importlib.import_module(f"kernelwright.{drawer}.{name}")
    except (ImportError, SyntaxError, AttributeError) as error:
        raise BrokenPlugin(drawer, name, str(error)) from error

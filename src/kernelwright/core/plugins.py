"""Drawers: the file's name is its registration, entry points serve third parties, nothing loads until asked for.

A folder of the user's own adds to the drawers without being installed: `FOLDER/backends/NAME.py` is a backend, and so
for the other drawers; `FOLDER/seeds/OP/BACKEND.EXT` is a seed. Which folders are in use stands in the environment, so
that every process of a run finds the same ones.
"""

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from kernelwright.core.environment import PLUGIN_FOLDERS
from kernelwright.core.errors import AmbiguousName, BrokenPlugin, NotFound, UnknownName

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


def folders(environment: Mapping[str, str] | None = None) -> list[Path]:
    """Return the user's own folders that are in use, in the order they were named."""
    named = (os.environ if environment is None else environment).get(PLUGIN_FOLDERS, "")
    return [Path(folder) for folder in named.split(os.pathsep) if folder]


@contextmanager
def using(wanted: Sequence[str]) -> Iterator[None]:
    """Use folders of the user's own, besides those in use already, in this process and in those it starts."""
    before = os.environ.get(PLUGIN_FOLDERS)
    use(wanted)
    try:
        yield
    finally:
        os.environ.pop(PLUGIN_FOLDERS, None)
        if before is not None:
            os.environ[PLUGIN_FOLDERS] = before
        load.cache_clear()


def use(wanted: Sequence[str]) -> None:
    """Use folders of the user's own from now on."""
    for folder in wanted:
        if not Path(folder).is_dir():
            raise NotFound("Plugin folder", folder, "Give --plugins a folder with backends/NAME.py in it.")
    known = dict.fromkeys([*map(str, folders()), *(str(Path(folder).resolve()) for folder in wanted)])
    if known:
        os.environ[PLUGIN_FOLDERS] = os.pathsep.join(known)
        load.cache_clear()


def _folder_files(drawer: str) -> dict[str, Path]:
    """Return the files of a drawer in the user's own folders by name, refusing two with the same name."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted((folder / drawer).glob("*.py")):
            if path.stem.startswith("_"):
                continue
            if path.stem in found:
                raise AmbiguousName(drawer, path.stem)
            found[path.stem] = path
    return found


def names(drawer: str) -> list[str]:
    """Return every name in a drawer, sorted, without importing any of them."""
    if drawer not in DRAWERS:
        raise UnknownName("drawer", drawer, tuple(DRAWERS))
    own, foreign, files = _own_files(drawer), _entry_points(drawer), _folder_files(drawer)
    for clash in (own & foreign.keys()) | (own & files.keys()) | (foreign.keys() & files.keys()):
        raise AmbiguousName(drawer, clash)
    return sorted(own | foreign.keys() | files.keys())


def language_of(suffix: str) -> str | None:
    """Return the language that files with this ending are written in, among those that are not this package's own."""
    foreign = {**_entry_points("backends"), **_folder_files("backends")}
    return next((name for name in sorted(foreign) if suffix == load("backends", name).EXTENSION), None)


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
        if path := _folder_files(drawer).get(name):
            return _from_file(drawer, name, path)
        return importlib.import_module(f"kernelwright.{drawer}.{name}")
    except (ImportError, SyntaxError, AttributeError) as error:
        raise BrokenPlugin(drawer, name, str(error)) from error


def _from_file(drawer: str, name: str, path: Path) -> ModuleType:
    """Return the module of a file, under a name that no package has."""
    spec = importlib.util.spec_from_file_location(f"kernelwright_plugins.{drawer}.{name}", path)
    if spec is None or spec.loader is None:
        raise BrokenPlugin(drawer, name, f"{str(path)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module

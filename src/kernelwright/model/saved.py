"""A live module of the user's own process, on its way to the model processes: one file, read only by whom it is for.

1. `save` pickles module and inputs into a folder of the home that only its user can read; its name is the content's
   digest. With it goes where the user's process finds its modules.
2. `build` is the factory the model processes call. It unpickles nothing but a file that such a folder holds unchanged:
   the module is the user's own code and runs where user code may, never in the judge, the reference or a worker.
3. A class of the user's main script is found again by importing that script under another name.
"""

import hashlib
import os
import pickle
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from pydantic import ValidationError

from kernelwright.core.errors import BadInput, ModelNotLoadable
from kernelwright.core.frozen import Frozen, digest
from kernelwright.core.model_spec import SAVED_FACTORY, SAVED_FOLDER
from kernelwright.model.dry_run import USER_MISTAKES, said
from kernelwright.model.load import _import_file
from kernelwright.model.memory import is_out_of_memory
from kernelwright.store.disk import disk_errors, make_folder, sync_folder

CONTENT, RECORD = "model.pt", "saved.json"
LOADING = "KERNELWRIGHT_LOADING"
"""Set in a model process while it imports the user's main script."""
KEY_DIGITS = 32


class Saved(Frozen):
    """`saved.json`: how the file beside it is read."""

    digest: str
    """SHA-256 of the file."""
    main: str | None
    """The user's main script, if it has one."""
    paths: tuple[str, ...]
    """Where the user's process finds modules."""


def save(module: torch.nn.Module, inputs: Any, home: Path) -> str:
    """Save a module with its inputs and return the name under which a run's processes load it.

    `inputs` is whatever `sample_inputs` may return, or a function of a seed that returns it.
    """
    name = type(module).__name__
    if os.environ.get(LOADING):
        problem = "it is called while the model's own file is imported"
        raise BadInput("kernelwright.optimize", problem, "Put the call under `if __name__ == '__main__':`.")
    folder = home.resolve() / SAVED_FOLDER
    part = folder / f".{os.urandom(8).hex()}"
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    paths = tuple(str(Path(entry or ".").resolve()) for entry in sys.path)
    with disk_errors(folder):
        make_folder(folder)
        part.mkdir(mode=0o700)
        try:
            content = _pickled(name, module, inputs, part / CONTENT)
            record = Saved(digest=content, main=str(Path(main).resolve()) if main else None, paths=paths)
            (part / RECORD).write_text(record.model_dump_json())
            for file in (part / CONTENT, part / RECORD):
                file.chmod(0o600)  # whatever the umask says
            place = folder / digest(record.model_dump_json())[:KEY_DIGITS]
            if not place.exists():  # else the same module was saved before
                part.rename(place)
                sync_folder(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return f"{SAVED_FACTORY}({str(place)!r})"


def _pickled(name: str, module: torch.nn.Module, inputs: Any, path: Path) -> str:
    """Write the file and return its digest."""
    remedy = "Define classes and functions at the top of a file, or give a name such as 'model.py:build'."
    if getattr(sys.modules.get("__main__"), "__file__", None) is None:
        for one in {type(part) for part in module.modules()}:
            if one.__module__ == "__main__":
                problem = f"class {one.__qualname__!r} is in no file, so another process cannot import it"
                raise BadInput(name, problem, remedy)
    try:
        with path.open("xb") as stream:
            torch.save({"module": module, "inputs": inputs}, stream)
            stream.flush()
            os.fsync(stream.fileno())
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadInput(name, f"it cannot be saved: {said(error)}", remedy) from error
    return _digest(path)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file that may be larger than memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def build(place: str) -> torch.nn.Module:
    """Return the module that `save` wrote, with its inputs as `sample_inputs`."""
    folder = Path(place)
    remedy = "Save it again: call kernelwright.optimize with the module."
    try:
        record = Saved.model_validate_json((folder / RECORD).read_bytes())
        content = _digest(folder / CONTENT)
    except (OSError, ValidationError) as error:
        raise ModelNotLoadable(place, f"it is no saved module ({said(error)})", remedy) from error
    for path in (folder, folder / CONTENT, folder / RECORD):
        found = path.lstat()
        is_ours = found.st_uid == os.getuid() and not stat.S_ISLNK(found.st_mode)
        if not is_ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ModelNotLoadable(place, f"{path.name} can be changed by others", remedy)
    name = digest(record.model_dump_json())[:KEY_DIGITS]
    if content != record.digest or folder.name != name:
        raise ModelNotLoadable(place, "its content is not what was saved", remedy)
    sys.path.extend(entry for entry in record.paths if entry not in sys.path)
    try:
        with _main_at(record.main):
            # A pickle runs code: this one was written by this user's own process, and has not changed since.
            found_there = torch.load(folder / CONTENT, weights_only=False)
    except (*USER_MISTAKES, pickle.UnpicklingError) as error:
        if is_out_of_memory(error):
            raise
        raise ModelNotLoadable(place, f"it cannot be read: {said(error)}", remedy) from error
    module, inputs = found_there["module"], found_there["inputs"]
    if inputs is not None:  # else the module's own
        module.sample_inputs = inputs if callable(inputs) else _always(inputs)
    return module


def _always(inputs: Any) -> Callable[[int], Any]:
    def sample_inputs(seed: int) -> Any:  # noqa: ARG001 - the caller gave values, and no way to make others
        return inputs

    return sample_inputs


@contextmanager
def _main_at(script: str | None) -> Iterator[None]:
    """Let `__main__` be the user's script, imported only if something is looked up in it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = _Script(script)
    os.environ[LOADING] = "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        del os.environ[LOADING]


class _Script(ModuleType):
    """The user's main script; a class of it is found by importing the file under a name of its own."""

    def __init__(self, script: str | None) -> None:
        super().__init__("__main__")
        self._script = script

    def __getattr__(self, name: str) -> Any:
        script = self.__dict__.get("_script")
        if script is None or name.startswith("__"):
            raise AttributeError(name)
        if "_imported" not in self.__dict__:
            self._imported = _import_file(Path(script))
        return getattr(self._imported, name)

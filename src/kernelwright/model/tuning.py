"""`kernelwright.tune`: a decorator that runs the certified winner of a call, and the function itself everywhere else.

1. A call is looked up by its tensors' shapes, types, strides and device, its other arguments, and the globals the
   function reads. What was found is kept for the next such call; a call never seen runs the original.
2. Under gradients, autocast, compilers or vmap, and where a guard of a kernel does not hold, the original runs.
3. Nothing is searched while calls are made. `decorated.tune(*sample)` searches, in processes of its own.
"""

import functools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import kernelwright
from kernelwright.core.errors import BadInput, KernelwrightError
from kernelwright.core.manifest import FOLDER as KERNELS
from kernelwright.core.manifest import NAME as MANIFEST
from kernelwright.core.tuned import FOLDER, NAME, CallFile, TunedCall, call_key, parse_tuned
from kernelwright.model.call import LITERALS, TENSORS, bound, described, place_name
from kernelwright.model.code_identity import Identity, identity, plain
from kernelwright.model.program import Run, loaded
from kernelwright.model.tally import Tally
from kernelwright.store.locate import home as default_home
from kernelwright.store.manifest import certified

FIXED = (*LITERALS, torch.dtype, torch.device)


@dataclass(frozen=True)
class Winner:
    """What a lookup found for a call."""

    tuned: TunedCall
    folder: Path
    run: Run
    tensors: int
    """How many tensors it takes."""
    lookup_s: float
    """How long finding and loading it took, imports apart."""


@dataclass
class Calls:
    """What became of the calls of a function."""

    served: int = 0
    """Calls that certified kernels answered."""
    originals: Counter[str] = field(default_factory=Counter)
    """Calls of the original, by why."""


class Tuned:
    """A function with certified winners for the calls it was tuned for."""

    def __init__(
        self, function: Callable[..., Any], budget: str | None, backend: str | None, home: str | Path | None
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.budget, self.backend = budget, backend
        self.home = Path(home) if home is not None else None
        self.calls, self.tally = Calls(), Tally()
        self._known: Identity | None = None
        self._found: dict[Any, Winner | str] = {}
        self._lock = threading.Lock()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind a method: its object is an argument like any other, and none that kernels are looked up by."""
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the winner of this call, or the original."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return self.function(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        found = self._lookup(args, kwargs, tensors)
        if found.__class__ is Winner:
            found = _hindrance(tensors) or found.run(*tensors)
            if found.__class__ is not str:
                self.calls.served += 1
                return found
        self.calls.originals[found] += 1
        return self.function(*args, **kwargs)

    def winner(self, *args: Any, **kwargs: Any) -> Winner | None:
        """Return the winner that serves such a call, None if the original does."""
        found = self._lookup(args, kwargs, [])
        return found if isinstance(found, Winner) else None

    def _lookup(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> Any:
        """Return the winner of a call, or why there is none; its tensors are added in order."""
        known = self._known or self._identified()
        parts: list[Any] = [torch.get_default_dtype()]
        if known.watched:
            parts.append(known.surroundings())
        try:
            _walk(args, parts, tensors)
            if kwargs:
                _walk(kwargs, parts, tensors)
            key = tuple(parts)
            found = self._found.get(key)
        except _Strange as strange:
            return str(strange)
        if found is None:
            with self._lock:
                found = self._found.get(key)
                if found is None:
                    found = self._found[key] = self._read(args, kwargs)
        if isinstance(found, Winner) and (kwargs or len(tensors) != found.tensors):
            # In the order of the function's own arguments, defaults included, however the call wrote them.
            tensors.clear()
            ordered, named = bound(self.function, args, kwargs)
            _walk((*ordered, *named.values()), [], tensors)
        return found

    def __reduce__(self) -> str:
        """Pickle by name, as functions are."""
        return str(self.function.__qualname__)

    def _identified(self) -> Identity:
        self._known = identity(self.function)
        return self._known

    def _place(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, torch.device]:
        """Return the key of a call, and where its tensors lie."""
        known = identity(self.function)  # anew: a global may have changed since
        if known.hindrance:
            raise BadInput(known.name, known.hindrance, "Pass it as an argument.")
        tensors: list[torch.Tensor] = []
        given = bound(self.function, args, kwargs)
        _walk((given[0], *given[1].values()), [], tensors)
        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1:
            names = ", ".join(sorted(map(str, devices))) or "none"
            raise BadInput(known.name, f"its tensors lie on {names}", "Put them on one device.")
        (device,) = devices
        return call_key(known.name, known.fingerprint, described(*given), place_name(device)), device

    def _folder(self, key: str) -> Path:
        return (self.home or default_home(os.environ)) / FOLDER / key

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Winner | str:
        """Look a call up on disk, and load what is found."""
        started = time.perf_counter()
        try:
            key, device = self._place(args, kwargs)
            folder = self._folder(key)
            path = folder / NAME
            if not path.is_file():
                return "never tuned"
            tuned = parse_tuned(path.read_text(), str(path))
            if tuned.program is None:
                return "nothing was proven faster"
            certified(folder / KERNELS / MANIFEST, tuned.manifest_hash)
            run = loaded(tuned.program, folder / KERNELS, device, self.tally)
        except (KernelwrightError, TypeError, OSError) as error:
            return f"not looked up: {error}"
        return Winner(tuned, folder, run, tuned.program.tensors, time.perf_counter() - started)

    def tune(self, *args: Any, **kwargs: Any) -> TunedCall:
        """Search for kernels that serve such a call faster, and return what was found; samples are not kept.

        The search runs in processes of its own, which import the function's file; a call that was tuned before is
        answered from its folder.
        """
        key, device = self._place(args, kwargs)
        call = described(*bound(self.function, args, kwargs), with_values=True)
        file = CallFile(spec=spec_of(plain(self.function)), call=call, device=str(device))
        words = ["--home", str((self.home or default_home(os.environ)).resolve()), "--json"]
        words += ["--budget", self.budget] if self.budget else []
        words += ["--backend", self.backend] if self.backend else []
        with tempfile.NamedTemporaryFile("w", suffix=".json") as sample:
            sample.write(file.model_dump_json())
            sample.flush()
            told = _cli("tune", file.spec, "--call", sample.name, *words)
        if told["key"] != key:
            problem = f"its code is another one where it is imported from {file.spec}"
            raise BadInput(file.spec, problem, "Save the file, and tune what it says.")
        with self._lock:
            self._found.clear()
        path = self._folder(key) / NAME
        return parse_tuned(path.read_text(), str(path))


class _Strange(Exception):
    """An argument that no kernel is looked up by."""


def _walk(value: Any, parts: list[Any], tensors: list[torch.Tensor]) -> None:
    """Add what tells one call from another, and its tensors in order."""
    kind = type(value)
    if kind in TENSORS:
        tensors.append(value)
        parts.append((value.shape, value.stride(), value.dtype, value.device))
    elif kind in FIXED:
        parts.append((kind, value))
    elif kind in (tuple, list, torch.Size):
        parts.append((kind, len(value)))
        for item in value:
            _walk(item, parts, tensors)
    elif kind is dict:
        parts.append((kind, *value))
        for item in value.values():
            _walk(item, parts, tensors)
    else:
        raise _Strange(f"an argument is a {kind.__name__}")


def _hindrance(tensors: list[torch.Tensor]) -> str:
    """Return what keeps kernels from answering for the function here; empty if nothing does."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "gradient"
    if torch.is_autocast_enabled(tensors[0].device.type):
        return "autocast"
    if torch._C._functorch.maybe_current_level() is not None:
        return "vmap"
    return "mode" if torch._C._len_torch_dispatch_stack() else ""


def spec_of(function: Callable[..., Any]) -> str:
    """Return the name under which another process can import a function."""
    name, module = function.__qualname__, sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if "<" in name or file is None or module is None:
        remedy = "Define it at the top of a file."
        raise BadInput(name, "another process cannot import it", remedy)
    is_packaged = bool(getattr(module, "__package__", "")) and module.__name__ != "__main__"
    return f"{module.__name__}:{name}" if is_packaged else f"{Path(file).resolve()}:{name}"


def _cli(*words: str) -> Any:
    """Return what a verb of the command line answers; what it says while it works is logged."""
    root = Path(kernelwright.__file__).parents[1]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    log, last = logging.getLogger("kernelwright.tune"), "the search ended without a word"
    with tempfile.TemporaryFile("w+") as answer:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "kernelwright",
                *words,
            ],  # -P: a file of the user's own is no module of ours
            stdout=answer,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert process.stderr is not None
        for line in process.stderr:
            last = line.strip() or last
            log.info(last)
        if process.wait() not in (0, 1):
            raise KernelwrightError(last.removeprefix("error: "))
        answer.seek(0)
        return json.loads(answer.read())


def tune(
    function: Callable[..., Any] | None = None,
    *,
    budget: str | None = None,
    backend: str | None = None,
    home: str | Path | None = None,
) -> Any:
    """Return a function that runs its certified winners; with options only, the decorator that makes one."""
    if function is None:
        return functools.partial(tune, budget=budget, backend=backend, home=home)
    if not callable(plain(function)) or not hasattr(plain(function), "__code__"):
        raise BadInput(repr(function), "it is no function of Python", "Decorate a function of tensors.")
    return Tuned(function, budget, backend, home)

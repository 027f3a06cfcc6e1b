"""One call of a model on tensors without memory: how many bytes it would take, and which tables it looks up.

Shapes are worked out by torch's fake tensors, so that a call that cannot fit costs nothing to ask about.
"""

import copy
import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernelwright.model.arguments import Arguments, InputSet

USER_MISTAKES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(MemoryError, OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)
"""What a user's own code raises when it is not right yet."""


def said(error: BaseException) -> str:
    """Return an exception in one line of bearable length, with no full stop at its end."""
    words = " ".join(str(error).split())[:300].rstrip(". ")
    return f"{type(error).__name__}: {words}"


@dataclass(frozen=True)
class DryRun:
    """What one call would do."""

    peak_bytes: int
    """Most bytes of tensors alive at once, arguments included, weights left out."""
    rows: dict[int, int]
    """Rows of the smallest table that each tensor of the arguments, by place, is looked up in as it stands."""
    error: BaseException | None
    """What ended the call early: shapes that do not fit, or values it depends on."""


class _Lookups(TorchFunctionMode):
    """Notes the tables that tensors are looked up in, by storage: a view of an input is still that input."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.embedding, F.embedding_bag):
            ids, table = args[:2]
            key, rows = ids.untyped_storage()._cdata, table.shape[0]
            self.rows[key] = min(self.rows.get(key, rows), rows)
        return func(*args, **(kwargs or {}))


class _Live(TorchDispatchMode):
    """Adds up the bytes of the storages alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # A result that aliases an argument takes no memory of its own; one that aliases a weight must not count it.
        if not any(result.alias_info for result in func._schema.returns):
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self.count(leaf.untyped_storage())
        return out

    def count(self, storage: Any) -> None:
        """Add a storage for as long as it lives."""
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return

        def gone(_: object) -> None:
            self.now -= size
            self.known.pop(key, None)

        self.known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging the traceback of what we are about to catch."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _hollow(module: torch.nn.Module, mode: FakeTensorMode) -> torch.nn.Module:
    """Return a copy without weights: what a call writes into a cache or keeps must not stay in the model."""
    held = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): mode.from_tensor(tensor) for tensor in held})


def without_memory(one: InputSet, mode: FakeTensorMode) -> Arguments:
    """Return a set's arguments as shapes only."""
    if not one.is_drawn:
        return one.make(0).mapped(mode.from_tensor)
    with mode:
        return one.make(0)


def dry_run(module: torch.nn.Module, make: Callable[[FakeTensorMode], Arguments]) -> DryRun:
    """Return what calling the module on these arguments would take."""
    live, lookups = _Live(), _Lookups()
    keys: list[int] = []
    error: BaseException | None = None
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        arguments, shell = make(mode), _hollow(module, mode)
        storages = [tensor.untyped_storage() for tensor in arguments.tensors()]
        for storage in storages:
            live.count(storage)
        keys = [storage._cdata for storage in storages]
        with _quiet(), mode, live, lookups:
            arguments.call(shell)
    except USER_MISTAKES as found:
        error = found.with_traceback(None)  # its frames would keep every tensor of the call alive
    rows = {place: lookups.rows[key] for place, key in enumerate(keys) if key in lookups.rows}
    return DryRun(live.peak, rows, error)

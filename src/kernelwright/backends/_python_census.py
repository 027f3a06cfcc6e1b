"""The census: which operations of the framework a call made, seen by torch's own dispatcher in the runner.

What it proves: a file that hands work to torch on the thread that called it is caught whatever its source looks like,
because every operator of torch passes the dispatcher; so is one that starts a thread of Python's. What it cannot prove:
the candidate's code shares this process, so hostile code can leave the census (a library loaded by hand, a patched
torch) or forge its own. It is the second line behind the static guard; nothing it says can acquit, and what it reports
can only condemn.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from kernelwright.core.frames import DELEGATED

ALLOCATION = frozenset(
    {
        *(
            "aten::empty",
            "aten::empty_like",
            "aten::empty_strided",
            "aten::new_empty",
            "aten::new_empty_strided",
        ),
        *("aten::zeros", "aten::zeros_like", "aten::new_zeros"),
        # Views torch does not call views, and the one copy `contiguous` and `reshape` may need.
        *("aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh", "aten::clone", "aten::set_"),
    }
)
MOST_NAMED = 4
DECLINED = 2
"""A file declines a case by raising NotImplementedError."""


def is_free(operator: Any, arguments: tuple[Any, ...]) -> bool:
    """Tell whether an operator only allocates, takes a view, or copies onto itself as the interpreter does."""
    name = operator.name().partition(".")[0]
    if name in ALLOCATION or operator.is_view:
        return True
    return name == "aten::copy_" and arguments[0].data_ptr() == arguments[1].data_ptr()


def watched_threads() -> list[str]:
    """Return a list that grows with every thread started from now on: what runs there is not in the census."""
    import _thread
    import threading

    started: list[str] = []
    start = _thread.start_new_thread

    def noted(function: Any, *rest: Any) -> int:
        started.append(getattr(function, "__qualname__", "a function"))
        return start(function, *rest)

    # Both names, before anything of the candidate is imported: it never sees the original.
    _thread.start_new_thread = noted
    threading._start_new_thread = noted  # type: ignore[attr-defined]
    return started


def counted(function: Callable[[], Any], threads: list[str]) -> Callable[[], Any]:
    """Return the call under the census: what it returns, or the code that says it delegated."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Census(TorchDispatchMode):
        """Notes every operator that does work."""

        def __init__(self) -> None:
            super().__init__()
            self.work: list[str] = []

        def __torch_dispatch__(
            self,
            func: Any,
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            if not is_free(func, args):
                self.work.append(func.name())
            return func(*args, **(kwargs or {}))

    return partial(_count, function, Census, threads)


def _count(function: Callable[[], Any], census: Callable[[], Any], threads: list[str]) -> Any:
    import torch

    with torch.no_grad(), census() as seen:
        try:
            value = function()
        except NotImplementedError as refusal:
            sys.stderr.write(f"{refusal}\n")
            value = DECLINED
    if threads:
        seen.work.append(f"a thread of its own ({threads[0]})")
    if not seen.work:
        return value
    names = ", ".join(dict.fromkeys(seen.work[: 4 * MOST_NAMED]))
    sys.stderr.write(f"the framework, or something out of sight, did the work: {names}\n")
    sys.stderr.flush()
    return DELEGATED

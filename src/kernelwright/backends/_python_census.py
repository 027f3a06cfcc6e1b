"""The census: which operations of the framework a call made, seen by torch's own dispatcher in the runner.

What it proves: a file that hands work to torch on the thread that called it is caught whatever its source looks like,
because every operator of torch passes the dispatcher. What it cannot prove: the candidate's code shares this process,
so hostile code can leave the census (another thread, a library loaded by hand, a patched torch) or forge its own. It
is the second line behind the static guard; nothing it says can acquit, and what it reports can only condemn.
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


def counted(function: Callable[[], Any]) -> Callable[[], Any]:
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

    return partial(_count, function, Census)


def _count(function: Callable[[], Any], census: Callable[[], Any]) -> Any:
    import torch

    with torch.no_grad(), census() as seen:
        try:
            value = function()
        except NotImplementedError as refusal:
            sys.stderr.write(f"{refusal}\n")
            value = DECLINED
    if not seen.work:
        return value
    names = ", ".join(dict.fromkeys(seen.work[: 4 * MOST_NAMED]))
    sys.stderr.write(f"operators of torch did the work: {names}\n")
    sys.stderr.flush()
    return DELEGATED

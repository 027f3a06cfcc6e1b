"""Calls into the C library that Python does not wrap, each failure an `OSError`."""

import ctypes
import os
from functools import cache
from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """Call a function that says -1 on failure. `Any`: whatever ctypes can pass."""
    function = getattr(_library(), name)
    # A bare int would be passed as 32 bits; flags and addresses need the whole register.
    result = function(*(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return int(result)


def syscall(number: int, *arguments: Any) -> int:
    """Make a system call by its number. `Any`: whatever ctypes can pass."""
    return call("syscall", number, *arguments)


def prctl(option: int, value: int) -> None:
    """Set one property of this process."""
    call("prctl", option, value, 0, 0, 0)

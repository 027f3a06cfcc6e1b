"""Landlock: from here on this process opens only what it was shown, whoever it runs as."""

import ctypes
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from kernelwright.worker import libc

CREATE, ADD, RESTRICT = 444, 445, 446
"""System calls, the same numbers on every instruction set."""
ASK_VERSION, PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL = 1 << 13, 1 << 14, 1 << 15
FIRST_RIGHTS = (1 << 13) - 1
"""Everything the first version knows, removing and making entries included."""
LOOK = EXECUTE | READ_FILE | READ_FOLDER
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
TCP = 0b11
"""Binding and connecting."""
SCOPES = 0b11
"""Abstract sockets and signals of processes outside."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32))


def version() -> int:
    """Return the version the kernel offers, 0 for none."""
    try:
        return libc.syscall(CREATE, None, 0, ASK_VERSION)
    except OSError:
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str]) -> int:
    """Leave this process those paths only, and no TCP; return the version in force, 0 for none."""
    offered = version()
    if not offered:
        return 0
    rights = FIRST_RIGHTS
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL)):
        rights |= right if offered >= since else 0
    ruleset = _Ruleset(rights, TCP if offered >= 4 else 0, SCOPES if offered >= 6 else 0)
    size = 8 if offered < 4 else 16 if offered < 6 else 24
    try:
        descriptor = libc.syscall(CREATE, ctypes.byref(ruleset), size, 0)
    except OSError:
        return 0
    try:
        for path in readable:
            _allow(descriptor, path, LOOK)
        for path in writable:
            _allow(descriptor, path, rights & ~IOCTL)
        libc.syscall(RESTRICT, descriptor, 0)
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return offered


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add one path, if it is there."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            folder = stat.S_ISDIR(os.fstat(place).st_mode)
            rule = _Beneath(rights if folder else rights & ON_FILES, place)
            libc.syscall(ADD, ruleset, PATH_BENEATH, ctypes.byref(rule), 0)
        finally:
            os.close(place)

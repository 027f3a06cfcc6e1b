"""What a file system may refuse, in our words; and the two fsyncs that make a file survive a power cut."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernelwright.core.errors import DiskFull, NotWritable

NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
"""Disk full, file size limit, quota: all mended by making room."""
NO_RIGHT = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})
"""Permission bits, immutable flags, a read-only mount, a file where a folder should be."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the system's refusals to write at `path` into `DiskFull` and `NotWritable`."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(path) from error
        if error.errno in NO_RIGHT:
            raise NotWritable(path, str(error.strerror)) from error
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a renamed or created file is not until its folder is synced."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and what is missing above it, durably; an existing one is left alone."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_folder(path.parent)

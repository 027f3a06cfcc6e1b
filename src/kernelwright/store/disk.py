"""What a file system may refuse, in our words; and the two fsyncs that make a file survive a power cut."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelwright.core.errors import DiskFull, NotWritable, ScratchFull

READABLE = 0o644
"""Mode of a new file: `mkstemp` alone would hide it from everybody else."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
"""Disk full, file size limit, quota: all mended by making room."""
SCRATCH_BYTES = 16 << 20
"""With less room than this in the judge's folder a failed build is nobody's fault but the disk's."""
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


@contextmanager
def scratch_errors(folder: Path) -> Iterator[None]:
    """Turn the want of room for what is thrown away afterwards into `ScratchFull`."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise ScratchFull(error.filename or folder) from error
        raise


def require_room(folder: Path, nbytes: int = SCRATCH_BYTES) -> None:
    """Raise `ScratchFull` unless a file of so many bytes can be written into a folder."""
    with scratch_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)


def not_of_folder(path: Path, folder: Path) -> str:
    """Return why a path in a folder is no file of it, empty if it is one: what it names is read and quoted.

    A folder of somebody else's may hold a link to a key, or to this process's own environment.
    """
    if not path.resolve().is_relative_to(folder.resolve()):
        return "it is a link that leads out of the folder"
    return "" if path.is_file() else "it is no plain file"


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


def replace_file(path: Path, content: bytes) -> None:
    """Put a file in place in one step, durably: a reader finds the old one or the new one, never half of it.

    A file that is there keeps its permissions; a link is replaced, not followed.
    """
    mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else READABLE
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        with suppress(FileNotFoundError):  # not there any more if all went well
            part.unlink()
    sync_folder(path.parent)

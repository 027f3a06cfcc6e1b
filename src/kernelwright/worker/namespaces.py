"""Namespaces: a file system, a network and a list of processes of one's own, as far as the system grants them.

A new root shows the paths a worker needs, read-only and under their own names, and nothing else: neither a home nor a
journal nor another runner's folder is there to be opened.
"""

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kernelwright.worker import libc

NEW_MOUNTS, NEW_NAME, NEW_IPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x1000_0000, 0x2000_0000, 0x4000_0000

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXECUTION = 1, 2, 4, 8
REMOUNT, BIND, RECURSIVE, PRIVATE = 1 << 5, 1 << 12, 1 << 14, 1 << 18
DETACH = 2
MOUNT_SETATTR = 442
HERE, WHOLE_TREE = -100, 0x8000

COVER_BYTES = 16 << 20
"""What an empty folder laid over a full one holds: a driver may leave a lock there."""

CAPABILITIES_VERSION = 0x2008_0522
BOX = "/box"
"""Where a worker finds its own folder: the same name for everybody, so that no path tells one from another."""


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user"))


def unshare(flags: int) -> None:
    """Leave the namespaces named by the flags for new ones."""
    libc.call("unshare", flags)


def join(descriptor: int, kind: int) -> None:
    """Enter a namespace by its descriptor."""
    libc.call("setns", descriptor, kind)


def enter(flags: int) -> bool | None:
    """Enter new namespaces, inside a new user namespace if need be; tell whether it was needed, None if refused."""
    try:
        unshare(flags)
    except OSError:
        try:
            become_own_user(flags)
        except OSError:
            return None
        return True
    return False


def become_own_user(flags: int = 0) -> None:
    """Enter a user namespace of one's own under the same number: the counts and the rights in it are one's own."""
    user, group = os.geteuid(), os.getegid()
    unshare(NEW_USER | flags)
    with suppress(FileNotFoundError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def drop_capabilities() -> None:
    """Give up every right of a superuser, in whichever user namespace they count."""
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    libc.call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def new_root(shown: Iterable[str], stage: str) -> None:
    """Make the shown paths, read-only, the whole file system, with an empty folder to mount one's own on."""
    _mount("none", "/", None, RECURSIVE | PRIVATE)
    _mount("tmpfs", stage, "tmpfs", NO_SUID | NO_DEVICES, "mode=755,size=4m")
    try:
        for place in (BOX, "/proc"):
            Path(stage + place).mkdir()
        bound = _bind_all(shown, stage)
        for place in ("/tmp", "/var/tmp", "/dev/shm"):
            if not (link := Path(stage + place)).exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(BOX)
        _make_read_only(stage, bound)
        # Writable: maps of user namespaces are written there. A runner mounts one of its own over it.
        _mount("/proc", stage + "/proc", None, BIND | RECURSIVE)
        os.chdir(stage)
        libc.call("pivot_root", b".", b".")
    except OSError:
        os.chdir("/")
        libc.call("umount2", stage.encode(), DETACH)
        raise
    libc.call("umount2", b".", DETACH)
    os.chdir("/")


def _bind_all(shown: Iterable[str], stage: str) -> list[str]:
    """Bind each path below the stage under its own name, symbolic links as links; return where."""
    wanted = [path for path in sorted(set(shown)) if Path(path).exists()]
    bound: list[str] = []
    for real in sorted({os.path.realpath(path) for path in wanted}):
        if not _covered(real, bound):
            _bind(real, stage + real)
            bound.append(real)
    links: list[str] = []
    for path in wanted:
        # Never through another link: that would lead out of the stage.
        if not _covered(path, (*bound, *links)):
            link = Path(stage + path)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.realpath(path))
            links.append(path)
    return bound


def _covered(path: str, tops: Iterable[str]) -> bool:
    return any(path == top or path.startswith(top + "/") for top in tops)


def _bind(source: str, target: str) -> None:
    place = Path(target)
    if Path(source).is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    _mount(source, target, None, BIND | RECURSIVE)


def _make_read_only(stage: str, bound: Iterable[str]) -> None:
    attributes = _MountAttributes(READ_ONLY | NO_SUID, 0, 0, 0)
    size = ctypes.sizeof(attributes)
    try:
        libc.syscall(MOUNT_SETATTR, HERE, stage.encode(), WHOLE_TREE, ctypes.byref(attributes), size)
    except OSError:  # before Linux 5.12: mount by mount, and what is mounted further down stays as it was
        for path in (*(stage + each for each in bound), stage):
            kept = os.statvfs(path).f_flag & (NO_DEVICES | NO_EXECUTION)
            _mount("none", path, None, REMOUNT | BIND | READ_ONLY | NO_SUID | kept)


def cover(place: str, shown: Iterable[str]) -> None:
    """Lay an empty folder in memory over a place, and back on it what is shown of it; leave it as it was if refused."""
    held = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in shown if _covered(path, (place,))}
    try:
        _mount("tmpfs", place, "tmpfs", NO_SUID | NO_DEVICES, f"mode=1777,size={COVER_BYTES}")
        try:
            for path, descriptor in sorted(held.items()):
                _bind(f"/proc/self/fd/{descriptor}", path)
        except OSError:
            libc.call("umount2", place.encode(), DETACH)
            raise
    finally:
        for descriptor in held.values():
            os.close(descriptor)


def own_mounts() -> None:
    """Have mounts of one's own: what is mounted from here on nobody else sees."""
    unshare(NEW_MOUNTS)
    _mount("none", "/", None, RECURSIVE | PRIVATE)


def mount_box(nbytes: int, user: int, group: int) -> None:
    """Mount an empty folder in memory that holds so many bytes and no more."""
    options = f"size={nbytes},nr_inodes=16384,mode=700,uid={user},gid={group}"
    _mount("tmpfs", BOX, "tmpfs", NO_SUID | NO_DEVICES, options)


def mount_proc(*, writable: bool) -> None:
    """Mount a /proc that knows only the processes of this process's own namespace."""
    flags = NO_SUID | NO_DEVICES | NO_EXECUTION | (0 if writable else READ_ONLY)
    _mount("proc", "/proc", "proc", flags)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind and kind.encode())
    libc.call("mount", *words, flags, options.encode() or None)

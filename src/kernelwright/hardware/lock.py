"""One timing at a time on a device, and nothing else beside it: a lock the kernel frees when its holder dies.

Who times holds the lock alone; who works there without timing, such as a judge that checks answers, shares it with all
who do the same. The lock is `flock` on a file named by the device. Who got it last is written into the file for the
others' messages; the text means nothing on its own (a killed holder leaves it behind), only the lock counts. Files are
never deleted: a file deleted under a waiting process would make two locks of one.
"""

import fcntl
import math
import os
import re
import stat
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import DeviceBusy, NotWritable
from kernelwright.core.frozen import Frozen
from kernelwright.hardware.detect import uuid_of

POLL_SECONDS = 0.02
SHOW_SECONDS = 5.0
HOLDER_BYTES = 4096
COMMAND_CHARACTERS = 200


class Holder(Frozen):
    """Who holds a lock, as it says itself."""

    pid: int
    """Process number."""
    command: str
    """Its command line."""
    since: datetime
    """When it got the lock."""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) since {self.since.astimezone():%H:%M:%S}"


def _silent(_text: str) -> None:
    pass


def runtime_folder() -> Path:
    """Return the user's folder of locks, created for that user alone.

    It depends on the user and on nothing else: with `$TMPDIR` or `$XDG_RUNTIME_DIR` in its name, a login shell, a
    cron job and a child with a clean environment would each lock a file of their own.
    """
    folder = Path("/tmp") / f"kernelwright-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    # Anybody may create names in /tmp: a folder or link planted there by somebody else is refused.
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise NotWritable(folder, "it is not a folder of this user")
    return folder


def lock_name(device: Device, uuid: str) -> str:
    """Return the file name of a device's lock.

    A GPU goes by its UUID: its index changes with CUDA_VISIBLE_DEVICES, and one GPU must not have two locks. Without a
    UUID the index must do. All cores of a host are one device.
    """
    if device.kind is DeviceKind.CPU:
        return "cpu.lock"
    safe = re.sub(r"[^0-9A-Za-z-]", "_", uuid) or str(device.index)
    return f"{device.kind.value}-{safe}.lock"


def read_holder(path: Path) -> Holder | None:
    """Return who wrote itself into a lock's file last; None if nobody did or the text cannot be read."""
    try:
        with path.open("rb") as file:
            return Holder.model_validate_json(file.read(HOLDER_BYTES))
    except (OSError, ValidationError):
        return None


@dataclass
class DeviceLock:
    """A context manager inside which nobody else times or checks on a device: this process may time there.

    Builders take no lock, and step back for everybody else; a context that is made ahead may still be in the making.
    """

    device: Device
    """What to lock."""
    folder: Path = field(default_factory=runtime_folder)
    """Where the locks are; everybody who is to be kept out must use the same."""
    wait_s: float = 600.0
    """How long to wait for one and the same holder; 0 refuses at once."""
    show: Callable[[str], None] = _silent
    """Told who is waited for, at first and every few seconds."""
    uuid: str | None = None
    """The GPU's UUID if the caller knows it; None asks the driver."""
    held_s: float = field(default=0.0, init=False)
    """Seconds it was ours alone, so far."""
    _alone_since: float | None = field(default=None, init=False, repr=False)
    _descriptor: int | None = field(default=None, init=False, repr=False)
    _place: int | None = field(default=None, init=False, repr=False)
    """Descriptor of our place in the queue, while we wait."""
    _held: Path | None = field(default=None, init=False, repr=False)
    """The file that is locked."""

    def __post_init__(self) -> None:
        # A forked child shares the open file and with it the lock: were it to outlive us, the device would stay locked.
        forget = weakref.WeakMethod(self._forget)
        os.register_at_fork(after_in_child=lambda: (method := forget()) and method())

    @property
    def path(self) -> Path:
        """Return the file the lock is on."""
        if self.uuid is None:  # a driver that does not answer now may answer later: then it is asked again
            self.uuid = uuid_of(self.device) or None
        return self.folder / lock_name(self.device, self.uuid or "")

    def __enter__(self) -> "DeviceLock":
        """Take the lock for ourselves or raise `DeviceBusy`."""
        self._acquire(fcntl.LOCK_EX)
        self._alone_since = time.monotonic()
        return self

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be at work beside others who do not time either, or raise `DeviceBusy`; nobody times meanwhile."""
        self._acquire(fcntl.LOCK_SH)
        try:
            yield
        finally:
            self.__exit__()

    def _acquire(self, kind: int) -> None:
        if self._descriptor is not None:
            raise RuntimeError(f"the lock on {self._held} is taken already")
        path = self.path
        holder, since, shown = read_holder(path), time.monotonic(), -math.inf
        try:
            while not (self._queue(path) and self._take(path, kind)):
                now = time.monotonic()
                if (found := read_holder(path)) != holder:
                    holder, since = found, now
                name = str(holder or "a process that does not say who it is")
                if now - since >= self.wait_s:
                    raise DeviceBusy(self._label, name, now - since)
                if now - shown >= SHOW_SECONDS:
                    self.show(f"waiting for {self._label}: in use by {name}")
                    shown = now
                time.sleep(min(POLL_SECONDS, self.wait_s - (now - since)))
        finally:
            self._leave_queue()

    def __exit__(self, *_: object) -> None:
        """Give the lock back."""
        if self._descriptor is None or self._held is None:
            return
        # Not the text of another who shares it.
        if (holder := read_holder(self._held)) and holder.pid == os.getpid():
            os.ftruncate(self._descriptor, 0)
        if self._alone_since is not None:
            self.held_s += time.monotonic() - self._alone_since
        _release(self._descriptor)
        self._descriptor = self._held = self._alone_since = None

    @property
    def _label(self) -> str:
        return f"{self.device.kind.value}:{self.device.index} ({self.device.name})"

    def _forget(self) -> None:
        """Close what was inherited, as a forked child: the parent goes on holding it."""
        descriptors, self._descriptor, self._place = (self._descriptor, self._place), None, None
        for descriptor in descriptors:
            if descriptor is not None:
                os.close(descriptor)

    def _leave_queue(self) -> None:
        descriptor, self._place = self._place, None
        if descriptor is not None:
            _release(descriptor)

    def _queue(self, path: Path) -> bool:
        """Be the one who gets the lock next; tell whether we are.

        Whoever gives the lock back and wants it again stands behind those who wait: without that, a process that times
        one thing after the other left another one waiting for eight minutes. Whoever would share it does, too, or one
        who wants to time would wait until by chance nobody is there.
        """
        if self._place is not None:
            return True
        descriptor = _opened(path.with_suffix(".queue"))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._place = descriptor
        return True

    def _take(self, path: Path, kind: int) -> bool:
        """Try once; tell whether the lock is ours."""
        descriptor = _opened(path)
        self._descriptor = descriptor
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            # Cleaned away between opening and locking: nobody else will look at it.
            is_ours = _is_at(path, descriptor)
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            self._descriptor = None
            os.close(descriptor)
            return False
        self._held = path
        holder = Holder(pid=os.getpid(), command=_command(), since=datetime.now(UTC))
        with suppress(OSError):  # a full disk has no room for the text; the lock is ours without it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.model_dump_json().encode(), 0)
        return True


def _opened(path: Path) -> int:
    """Return a descriptor of a lock's file, created if it is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NotWritable(path, str(error.strerror)) from error


def _release(descriptor: int) -> None:
    """Unlock and close: closing alone frees nothing while a child just forked has not closed its copy yet."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _command() -> str:
    return " ".join([Path(sys.argv[0] or sys.executable).name, *sys.argv[1:]])[:COMMAND_CHARACTERS]

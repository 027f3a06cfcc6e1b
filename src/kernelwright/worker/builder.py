"""The builder: one source in, one artefact in a folder out. A fresh process for every build, forked by the foundry.

1. This process reads the request and never touches the source. It forks a second one into namespaces of its own.
2. The second one shuts itself in with a folder in memory, tells how, and builds there: a source can read the toolchain
   and its own folder, whatever it includes, imports or runs while it is built. Asked for nothing, it only tells.
3. The first one copies out plain files, by descriptor and never through a link, and passes the answer on unread.
"""

import errno
import os
import resource
import shutil
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kernelwright.core import plugins
from kernelwright.core.errors import BadFrame
from kernelwright.core.frames import HEADER, body_length, pack, read_exactly, read_message
from kernelwright.core.messages.builder import BUILD_REQUEST, BuildReply, BuildRequest, Enclosed
from kernelwright.worker import libc, namespaces
from kernelwright.worker.sandbox import Ground, Needs, close_door, own_folder, sweep
from kernelwright.worker.seccomp import Rules

MEMORY_BYTES = 24 << 30
CPU_SECONDS = 240
FILE_BYTES = 256 << 20
FOLDER_BYTES = 1 << 30
OPEN_FILES = 1024
BOX = "box"
NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


def _needs(folder: str, user: int) -> Needs:
    return Needs(
        folder=folder,
        user=user,
        folder_bytes=FOLDER_BYTES,
        memory_bytes=MEMORY_BYTES,
        cpu_seconds=CPU_SECONDS,
        file_bytes=FILE_BYTES,
        open_files=OPEN_FILES,
    )


def _build(request: BuildRequest) -> BuildReply:
    backend, folder = plugins.load("backends", request.backend), Path(os.environ["HOME"])
    # Only tier A promises to be no host code, and so only tier A guards itself once more while it is built.
    guards = {"guarded": False} if request.guards_off and backend.TIER == "A" else {}
    if request.units:
        results = [
            backend.compile_unit(request.source, unit, request.target, folder, **guards)
            for unit in request.units
        ]
    else:
        results = [backend.build(request.source, request.values, folder, **guards)]
    return BuildReply(results=tuple(results))


@dataclass(frozen=True)
class Place:
    """Where a build happens, and what is left out around it."""

    folder: str
    first: int
    """The process that asked for it."""
    own_user: bool | None
    without: tuple[str, ...]


def _be_second(request: BuildRequest | None, channel: socket.socket, place: Place) -> None:
    """Shut this process in, show the first one the folder, tell how it is shut in, build, and answer."""
    try:
        box = Path(place.folder, BOX)
        box.mkdir()
        ground = Ground.prepare(place.folder, place.without, own_user=bool(place.own_user))
        needs = _needs(str(box), ground.user(place.first))
        reached = own_folder(ground, needs, warded=place.own_user is not None)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        socket.send_fds(channel, [b"."], [folder])
        os.close(folder)
        sandbox = close_door(ground, needs, Rules(starts_processes=True), reached)
        channel.sendall(pack(Enclosed(sandbox=sandbox)))
        if request is not None:
            channel.sendall(pack(_build(request)))
    except Exception:  # noqa: BLE001 - the worker's outermost frame
        traceback.print_exc()
    finally:
        os._exit(0)


def _copy_out(folder: int, target: Path) -> None:
    """Copy the plain files of a folder; a link could name any file of ours, and is left where it is."""
    for name in os.listdir(folder):
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as source:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size <= FILE_BYTES:
                    with (target / name).open("xb") as copy:
                        shutil.copyfileobj(source, copy)
        except OSError as error:
            if error.errno in NO_ROOM:
                # Half an artefact must not pass for a whole one.
                raise SystemExit(f"no room for {name!r}: {error.strerror}") from error


def _end(*_: object) -> None:
    """Take everything along that was started here."""
    sweep([])
    os.killpg(0, signal.SIGKILL)


def main(without: Sequence[str] = ()) -> None:
    """Answer one request on standard input, or tell how a builder is shut in if there is none."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever a compiler prints must not reach the answer's channel.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    request = read_message(sys.stdin.buffer, BUILD_REQUEST)
    # The answer's channel may be the request's: nothing that is started here may hold it open.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, _end)
    folder = request.folder if request else str(Path.cwd())
    place = Place(folder, os.getpid(), namespaces.enter(namespaces.NEW_PIDS), tuple(without))
    ours, theirs = socket.socketpair()
    second = os.fork()
    if not second:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ours.close()
        answer.close()
        _be_second(request, theirs, place)
    theirs.close()
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    with ours.makefile("rb") as stream:
        frames = [_frame(stream) for _ in range(2 if request else 1)]
    if not all(frames):
        code = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
        raise SystemExit(f"the process that built ended with {code} and no answer")
    sweep([])
    for descriptor in descriptors:
        _copy_out(descriptor, Path(folder))
    answer.write(b"".join(frames))
    answer.flush()


def _frame(stream: IO[bytes]) -> bytes:
    """Return a frame of the second process's as it came, empty if it broke off."""
    with suppress(BadFrame):
        header = read_exactly(stream, HEADER.size)
        if len(header) == HEADER.size:
            return header + read_exactly(stream, body_length(header))
    return b""


if __name__ == "__main__":
    main()

"""Builds as the judge asks for them: a fresh builder each, forked from a parent that has the compilers imported."""

import os
import select
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from kernelwright.core.errors import BadFrame, ServiceDied
from kernelwright.core.frames import pack, read_message
from kernelwright.core.messages.builder import BUILD_REPLY, ENCLOSED, BuildReply, BuildRequest, StartBuilder
from kernelwright.core.messages.runner import REAPED, SPAWNED, Reap
from kernelwright.core.ports import BuildResult
from kernelwright.core.verdict import Status
from kernelwright.judge.children import LOG_BYTES, Service
from kernelwright.store.disk import require_room

BUILD_SECONDS = 150
END_SECONDS = 1.0
PART_BYTES = 1 << 16


class _Said(NamedTuple):
    """What came of one builder."""

    answer: bytes | None
    """All it sent, None if it took too long."""
    code: int
    words: str
    """The end of what it printed."""


class Foundry:
    """The parent of builders, started with the first build; several threads may build at once."""

    def __init__(self, home: Path, without: Sequence[str] = ()) -> None:
        self.home = home
        self.without = tuple(without)
        """Layers left out around builders on purpose: tests only."""
        self.lock = threading.Lock()

    @cached_property
    def _service(self) -> Service:
        return Service("foundry", "kernelwright.worker.foundry", self.home, 1, *self.without)

    @cached_property
    def sandbox(self) -> str:
        """Return the layers around builders here, as one that builds nothing finds them in force."""
        with tempfile.TemporaryDirectory(dir=self.home, prefix="build-") as folder:
            said = self._asked(StartBuilder(folder=folder), b"")
        try:
            told = read_message(BytesIO(said.answer or b""), ENCLOSED)
        except BadFrame as error:
            raise ServiceDied("foundry", f"{error} {said.words}") from error
        if told is None:
            raise ServiceDied("foundry", f"a builder could not be shut in ({said.code}): {said.words}")
        return told.sandbox

    def close(self) -> None:
        """Kill the parent; builders die with it."""
        if "_service" in vars(self):
            self._service.close()

    def build(self, request: BuildRequest) -> BuildReply:
        """Return a builder's answer; its death is a value. Where there is no room, no source is to blame."""
        reply = self._built(request)
        if any(one.status is Status.BUILD_FAILED for one in reply.results):
            if all(one.artefact is None for one in reply.results):
                # A source that fills the place has failed by itself: what it left goes before the room is measured.
                _empty(Path(request.folder))
            require_room(self.home)
        return reply

    def _built(self, request: BuildRequest) -> BuildReply:
        wanted = max(1, len(request.units))
        said = self._asked(StartBuilder(backend=request.backend, folder=request.folder), pack(request))
        if said.answer is None:
            late = BuildResult(status=Status.BUILD_TIMED_OUT, log=f"no answer after {BUILD_SECONDS} s")
            return BuildReply(results=(late,) * wanted)
        stream, told, reply = BytesIO(said.answer), None, None
        with suppress(BadFrame):
            told, reply = read_message(stream, ENCLOSED), read_message(stream, BUILD_REPLY)
        if told is not None and told.sandbox != self.sandbox:
            raise ServiceDied("foundry", f"one builder reached {told.sandbox}, another {self.sandbox}")
        if reply is not None and len(reply.results) == wanted:
            return reply
        died = BuildResult(status=Status.BUILD_FAILED, log=f"the builder died ({said.code}): {said.words}")
        return BuildReply(results=(died,) * wanted)

    def _asked(self, order: StartBuilder, request: bytes) -> _Said:
        """Start a builder, send it a request or nothing, end it, and return what came of it."""
        ours, theirs = socket.socketpair()
        with ours, theirs, tempfile.TemporaryFile(dir=self.home) as log:
            with self.lock:  # two builds at once start one parent
                service = self._service
            pid = service.ask(order, [theirs.fileno(), log.fileno()], SPAWNED).pid
            theirs.close()
            try:
                answer = _conversation(ours, request)
            finally:
                code = self._ended(pid, ours)
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
            return _Said(answer, code, log.read().decode(errors="replace"))

    def _ended(self, pid: int, channel: socket.socket) -> int:
        """End a builder and everything it started, and return its exit code."""
        # Asked first: it knows of processes that left its group. Then killed, whatever it did with the question.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
        _drained(channel, time.monotonic() + END_SECONDS)
        return self._service.ask(Reap(pid=pid), [], REAPED).exit_code


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _conversation(channel: socket.socket, request: bytes) -> bytes | None:
    """Send a request and return all that comes back until the other side hangs up, or None if it takes too long."""
    deadline = time.monotonic() + BUILD_SECONDS
    channel.settimeout(BUILD_SECONDS)
    try:
        channel.sendall(request)
        channel.shutdown(socket.SHUT_WR)
    except (BrokenPipeError, ConnectionResetError):
        return b""
    except TimeoutError:
        return None
    return _drained(channel, deadline)


def _drained(channel: socket.socket, deadline: float) -> bytes | None:
    """Return what comes until the other side hangs up, or None if it does not in time."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([channel], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        try:
            part = channel.recv(PART_BYTES)
        except ConnectionResetError:
            part = b""
        if not part:
            return b"".join(parts)
        parts.append(part)

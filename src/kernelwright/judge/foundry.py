"""Builds as the judge asks for them: a fresh builder each, forked from a parent that has the compilers imported."""

import os
import select
import signal
import socket
import tempfile
import threading
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from kernelwright.core.errors import BadFrame
from kernelwright.core.frames import HEADER, pack, parse
from kernelwright.core.messages import (
    BUILD_REPLY,
    REAPED,
    SPAWNED,
    BuildReply,
    BuildRequest,
    Reap,
    StartBuilder,
)
from kernelwright.core.ports import BuildResult
from kernelwright.core.verdict import Status
from kernelwright.judge.children import LOG_BYTES, Service

BUILD_SECONDS = 150
END_SECONDS = 1.0
PART_BYTES = 1 << 16


class Foundry:
    """The parent of builders, started with the first build; several threads may build at once."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lock = threading.Lock()

    @cached_property
    def _service(self) -> Service:
        return Service("foundry", "kernelwright.worker.foundry", self.home, 1)

    def close(self) -> None:
        """Kill the parent; builders die with it."""
        if "_service" in vars(self):
            self._service.close()

    def build(self, request: BuildRequest) -> BuildReply:
        """Return a builder's answer; its death is a value."""
        wanted = max(1, len(request.units))
        ours, theirs = socket.socketpair()
        with ours, theirs, tempfile.TemporaryFile(dir=self.home) as log:
            order = StartBuilder(backend=request.backend, folder=request.folder)
            with self.lock:
                pid = self._service.ask(order, [theirs.fileno(), log.fileno()], SPAWNED).pid
            theirs.close()
            try:
                answer = _conversation(ours, pack(request))
            finally:
                code = self._ended(pid, ours)
            if answer is None:
                late = BuildResult(status=Status.BUILD_TIMED_OUT, log=f"no answer after {BUILD_SECONDS} s")
                return BuildReply(results=(late,) * wanted)
            try:
                reply = parse(answer[HEADER.size :], BUILD_REPLY)
                if len(reply.results) == wanted:
                    return reply
                raise BadFrame(f"{len(reply.results)} results for {wanted} requests")
            except BadFrame:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
                words = log.read().decode(errors="replace")
            died = BuildResult(status=Status.BUILD_FAILED, log=f"the builder died ({code}): {words}")
            return BuildReply(results=(died,) * wanted)

    def _ended(self, pid: int, channel: socket.socket) -> int:
        """End a builder and everything it started, and return its exit code."""
        # Asked first: it knows of processes that left its group. Then killed, whatever it did with the question.
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
        _drained(channel, time.monotonic() + END_SECONDS)
        with self.lock:
            return self._service.ask(Reap(pid=pid), [], REAPED).exit_code


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

"""The judge's children: reference, builder, nursery and the runners born there. Killed, never asked.

A runner's death is ordinary: `Lost` says how it ended and becomes a `Status`. A death of the reference or the
nursery is our own failure and raises `ServiceDied`.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import torch
from pydantic import BaseModel, TypeAdapter

import kernelwright
from kernelwright.core.environment import child_environment
from kernelwright.core.errors import BadFrame, ServiceDied
from kernelwright.core.frames import HEADER, REPLY, Reply, Word, body_length, pack, parse, parse_reply
from kernelwright.core.messages import (
    BUILD_REPLY,
    REAPED,
    SPAWNED,
    BuildReply,
    BuildRequest,
    Collect,
    DeviceJob,
    Job,
    Reap,
    Run,
    Spawn,
    Time,
)
from kernelwright.core.ports import BuildResult
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import Arena, Slab

Message = TypeVar("Message")

BUILD_SECONDS = 150
LOG_BYTES = 8192
TIMES_BYTES = 1 << 20
PACKAGE_ROOT = Path(kernelwright.__file__).parents[1]


class Lost(Exception):
    """A runner is gone, declined or broke the protocol."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(f"{status.value}: {reason}")
        self.status = status
        self.reason = reason


def _python(module: str, *arguments: str) -> list[str]:
    # -P and -s, not -I: isolated mode would also ignore the PYTHONPATH that an offline bundle needs.
    return [sys.executable, "-P", "-s", "-m", module, *arguments]


class Service:
    """A trusted child on the other end of a socket pair."""

    def __init__(self, name: str, module: str, home: Path, threads: int) -> None:
        self.name = name
        ours, theirs = socket.socketpair()
        self.channel = ours
        self.log = tempfile.TemporaryFile(dir=home)
        self.process = subprocess.Popen(
            _python(module, str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            env=child_environment(os.environ, PACKAGE_ROOT, home, threads),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        theirs.close()

    def ask(self, message: BaseModel, descriptors: list[int], kind: TypeAdapter[Message]) -> Message:
        """Send a message with descriptors and return the answer."""
        try:
            frame = pack(message)
            sent = socket.send_fds(self.channel, [frame], descriptors)
            self.channel.sendall(frame[sent:])
            header = _exactly(self.channel, HEADER.size)
            return parse(_exactly(self.channel, body_length(header)), kind)
        except (EOFError, ConnectionError) as error:
            raise ServiceDied(self.name, self._last_words()) from error

    def _last_words(self) -> str:
        self.log.seek(0)
        return self.log.read()[-600:].decode(errors="replace").strip() or f"exit code {self.process.poll()}"

    def close(self) -> None:
        """Kill the child and everything it started."""
        self.channel.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = channel.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def build(request: BuildRequest, home: Path) -> BuildReply:
    """Run the builder in a process group of its own and return its answer; a death of the builder is a value."""
    wanted = max(1, len(request.units))
    process = subprocess.Popen(
        _python("kernelwright.worker.builder"),
        env=child_environment(os.environ, PACKAGE_ROOT, home, 1),
        cwd=request.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        answer, log = process.communicate(pack(request), timeout=BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        late = BuildResult(status=Status.BUILD_TIMED_OUT, log=f"no answer after {BUILD_SECONDS} s")
        return BuildReply(results=(late,) * wanted)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    try:
        reply = parse(answer[HEADER.size :], BUILD_REPLY)
        if len(reply.results) == wanted:
            return reply
        raise BadFrame(f"{len(reply.results)} results for {wanted} requests")
    except BadFrame:
        words = log[-LOG_BYTES:].decode(errors="replace")
        died = BuildResult(
            status=Status.BUILD_FAILED, log=f"the builder died ({process.returncode}): {words}"
        )
        return BuildReply(results=(died,) * wanted)


class Runner:
    """One disposable process on one arena: what the two ways of starting one have in common."""

    def __init__(self, home: Path) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=home, prefix="runner-", ignore_cleanup_errors=True)
        self.log = tempfile.TemporaryFile(dir=home)
        self.number = 0
        self.channel, self.theirs = socket.socketpair()
        self.pid = 0
        self.exit_code: int | None = None

    def end(self) -> int:
        """Kill the process and return its exit code."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.channel.close()
        self.log.close()
        self.folder.cleanup()

    def ready(self, timeout_s: float) -> None:
        """Wait until the artefact is loaded."""
        reply = self._receive(timeout_s)
        if reply.word is not Word.READY:
            raise Lost(Status.CRASHED, f"the artefact could not be loaded: {self.last_words()}")

    def run(self, first: int, count: int, timeout_s: float) -> float:
        """Execute calls and return the seconds from order to reply on the judge's own clock."""
        self.number += 1
        self.signal(signal.SIGCONT)
        started = time.perf_counter()
        self._send(Run(first=first, count=count, number=self.number))
        reply = self._receive(timeout_s)
        elapsed = time.perf_counter() - started
        # Whatever is not in the buffers now never will be: no thread finishes the work after the clock has stopped.
        self.signal(signal.SIGSTOP)
        self._expect_done(reply)
        return elapsed

    def signal(self, number: signal.Signals) -> None:
        """Stop or continue the runner's whole group; it stands still whenever nothing is asked of it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def collect(self, timeout_s: float) -> None:
        """Have returned tensors copied into the output buffers."""
        self.number += 1
        self.signal(signal.SIGCONT)
        self._send(Collect(number=self.number))
        reply = self._receive(timeout_s)
        self.signal(signal.SIGSTOP)
        self._expect_done(reply)

    def _expect_done(self, reply: Reply) -> None:
        if reply.word is Word.DECLINED:
            raise Lost(Status.UNSUPPORTED, f"the kernel declined a legal case (refusal {reply.code})")
        if reply.word is Word.FAILED:
            raise Lost(Status.CRASHED, f"the kernel raised: {self.last_words()}")
        if reply.word is not Word.DONE or reply.number != self.number:
            raise Lost(Status.PROTOCOL, f"reply {reply.word.name} {reply.number} to order {self.number}")

    def _send(self, message: BaseModel) -> None:
        try:
            self.channel.sendall(pack(message))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._lost() from error

    def _receive(self, timeout_s: float) -> Reply:
        deadline, data = time.monotonic() + timeout_s, b""
        while len(data) < REPLY.size:
            ready, _, _ = select.select([self.channel], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                raise Lost(Status.TIMED_OUT, f"no reply within {timeout_s:.0f} s")
            part = self.channel.recv(REPLY.size - len(data))
            if not part:
                raise self._lost()
            data += part
        try:
            return parse_reply(data)
        except BadFrame as error:
            raise Lost(Status.PROTOCOL, str(error)) from error

    def _lost(self) -> Lost:
        """Return how the runner ended."""
        code = self.kill()
        if code < 0:
            known = -code in signal.Signals.__members__.values()
            name = signal.Signals(-code).name if known else f"signal {-code}"
            if name in ("SIGSEGV", "SIGBUS"):
                return Lost(
                    Status.OUT_OF_BOUNDS,
                    f"{name}: memory outside the buffers was touched, or an input written",
                )
            return Lost(Status.CRASHED, f"the runner died with {name}")
        return Lost(Status.CRASHED, f"the runner ended by itself with code {code}: {self.last_words()}")

    def kill(self) -> int:
        """Kill the runner's whole group, once, and return its exit code."""
        if self.exit_code is None:
            self.exit_code = self.end()
        return self.exit_code

    def last_words(self) -> str:
        """Return the bounded end of what the runner printed: shown, never parsed."""
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - 400))
        return self.log.read(400).decode(errors="replace").strip()


class ForkedRunner(Runner):
    """A runner born in the nursery: tier B on the CPU, one artefact."""

    def __init__(self, nursery: Service, artefact: Path, backend: str, arena: Arena, home: Path) -> None:
        super().__init__(home)
        self.nursery = nursery
        artefact_fd = os.open(artefact, os.O_RDONLY | os.O_CLOEXEC)
        inputs_fd = arena.inputs.read_only_descriptor()
        handed = [self.theirs.fileno(), artefact_fd, inputs_fd, arena.outputs.descriptor, self.log.fileno()]
        try:
            self.pid = nursery.ask(Spawn(folder=self.folder.name), handed, SPAWNED).pid
        finally:
            self.theirs.close()
            os.close(artefact_fd)
            os.close(inputs_fd)
        self._send(Job(backend=backend, cases=arena.cases, calls=arena.calls))

    def end(self) -> int:
        """Have the nursery kill and reap it."""
        return self.nursery.ask(Reap(pid=self.pid), [], REAPED).exit_code


class DeviceRunner(Runner):
    """A GPU runner, started fresh: tier A, a plan per case."""

    def __init__(self, job: DeviceJob, arena: Arena, home: Path, threads: int) -> None:
        super().__init__(home)
        self.times = Slab("times", TIMES_BYTES)
        inputs_fd = arena.inputs.read_only_descriptor()
        handed = (self.theirs.fileno(), inputs_fd, arena.outputs.descriptor, self.times.descriptor)
        self.process = subprocess.Popen(
            _python("kernelwright.worker.device", *map(str, handed)),
            pass_fds=handed,
            env=child_environment(os.environ, PACKAGE_ROOT, home, threads),
            cwd=self.folder.name,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        self.pid = self.process.pid
        self.theirs.close()
        os.close(inputs_fd)
        self._send(job)

    def time(self, order: Time, timeout_s: float) -> list[list[float]]:
        """Return the seconds of each replay per arm."""
        self.number += 1
        self.signal(signal.SIGCONT)
        self._send(order.model_copy(update={"number": self.number}))
        self._expect_done(self._receive(timeout_s))
        shape = (order.rounds, len(order.arms))
        raw = self.times.bytes_view(0, shape[0] * shape[1] * 8).view(torch.float64).reshape(shape)
        return raw.t().tolist()

    def end(self) -> int:
        """Kill its whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.times.close()
        return self.process.wait()

"""The judge's children: services it relies on, such as reference and nursery, and what all runners have in common.

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
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self, TypeVar

import torch
from pydantic import BaseModel, TypeAdapter

import kernelwright
from kernelwright.core import frames
from kernelwright.core.environment import child_environment
from kernelwright.core.errors import BadFrame, ServiceDied
from kernelwright.core.foreign import visible
from kernelwright.core.frames import HEADER, REPLY, Reply, Word, body_length, pack, parse
from kernelwright.core.messages.runner import (
    REAPED,
    Audit,
    Capture,
    Close,
    Collect,
    Leave,
    Overlap,
    Reap,
    Replay,
    Run,
)
from kernelwright.core.verdict import Status

if TYPE_CHECKING:
    from kernelwright.judge.runners import LaunchedRunner

Message = TypeVar("Message")

LOG_BYTES = 8192
FULL_SHARE, OOM_KILL_SHARE = 0.9, 0.25
"""Share of its budget a process held if memory is what ended it: by itself, or as the system's choice of victim."""
LOOK_SECONDS = 0.2
"""How often a runner that is waited for is looked after."""
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

    def __init__(
        self,
        name: str,
        module: str,
        home: Path,
        threads: int,
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.sandbox = ""
        """Names of the layers around the last runner born here, as that runner found them in force."""
        self.spares: deque[LaunchedRunner] = deque()
        """Launchers started ahead, oldest first: making a context takes longer than many a stage."""
        self.command = (module, home, threads, arguments)
        self.environment = environment
        """What its process finds beside the few names every child gets."""
        self.asking = threading.Lock()
        """Held from a question to its answer: threads that end runners at once would read each other's."""
        self._start()

    def _start(self) -> None:
        module, home, threads, arguments = self.command
        ours, theirs = socket.socketpair()
        self.channel = ours
        self.log = tempfile.TemporaryFile(dir=home)
        self.process = subprocess.Popen(
            _python(module, str(theirs.fileno()), *arguments),
            pass_fds=(theirs.fileno(),),
            env={**child_environment(os.environ, PACKAGE_ROOT, home, threads), **self.environment},
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        theirs.close()

    def restart(self) -> None:
        """Put a fresh process in the place of one that died."""
        self.close()
        self.spares.clear()
        self._start()

    def ask(self, message: BaseModel, descriptors: list[int], kind: TypeAdapter[Message]) -> Message:
        """Send a message with descriptors and return the answer."""
        try:
            frame = pack(message)
            with self.asking:
                sent = socket.send_fds(self.channel, [frame], descriptors)
                self.channel.sendall(frame[sent:])
                header = frames.receive_exactly(self.channel, HEADER.size)
                return parse(frames.receive_exactly(self.channel, body_length(header)), kind)
        except (EOFError, OSError) as error:  # gone, or closed by us after it died
            raise ServiceDied(self.name, self._last_words()) from error

    def _last_words(self) -> str:
        if self.log.closed:
            return f"exit code {self.process.poll()}"
        self.log.seek(0)
        return self.log.read()[-600:].decode(errors="replace").strip() or f"exit code {self.process.poll()}"

    def close(self) -> None:
        """Kill the child and everything it started."""
        for spare in self.spares:
            with suppress(ServiceDied):
                spare.__exit__()
        self.channel.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


class Runner:
    """One disposable process on one arena: what the two ways of starting one have in common."""

    def __init__(self, nursery: Service, home: Path) -> None:
        self.nursery = nursery
        self.folder = tempfile.TemporaryDirectory(dir=home, prefix="runner-", ignore_cleanup_errors=True)
        self.log = tempfile.TemporaryFile(dir=home)
        self.number = 0
        self.channel, self.theirs = socket.socketpair()
        self.pid = 0
        self.exit_code: int | None = None
        self.memory_bytes = self.peak_bytes = 0
        self.is_on_device = False
        self.looked_at = time.monotonic()

    def end(self) -> int:
        """Have the nursery kill and reap it, and return its exit code."""
        reaped = self.nursery.ask(Reap(pid=self.pid), [], REAPED)
        self.peak_bytes = reaped.peak_bytes
        return reaped.exit_code

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
            raise Lost(_failed(reply), f"the artefact could not be loaded: {self.last_words()}")

    def run(self, first: int, count: int, timeout_s: float) -> float:
        """Execute calls and return the seconds from order to reply on the judge's own clock."""
        return self.carry_out(Run(first=first, count=count), timeout_s)

    def batch(self, calls: Sequence[int], timeout_s: float) -> float:
        """Execute calls in this very order, likewise."""
        return self.carry_out(Run(calls=tuple(calls)), timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Stop or continue the runner's whole group; it stands still whenever nothing is asked of it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def collect(self, timeout_s: float) -> float:
        """Have returned tensors copied into the output buffers; return the seconds it took."""
        return self.carry_out(Collect(number=0), timeout_s)

    def carry_out(
        self, order: Run | Close | Collect | Audit | Overlap | Capture | Replay | Leave, timeout_s: float
    ) -> float:
        """Have an order carried out, and return the seconds from order to reply."""
        self._settle()
        self._look_now_and_then()  # here, and while nothing is there to be read: neither is on the clock
        self.number += 1
        frame = pack(order.model_copy(update={"number": self.number}))
        # Before it wakes: a thread of its own that was left running displaces this process, for 3 ms in median.
        started = time.perf_counter()
        self.signal(signal.SIGCONT)
        self._push(frame)
        reply = self._receive(timeout_s)
        elapsed = time.perf_counter() - started
        # Whatever is not in the buffers now never will be: no thread finishes the work after the clock has stopped.
        self.signal(signal.SIGSTOP)
        self._expect_done(reply)
        return elapsed

    def _settle(self) -> None:
        """Wait until what this process wrote into buffers on a GPU is there."""
        if self.is_on_device:
            torch.cuda.synchronize()

    def _expect_done(self, reply: Reply) -> None:
        if reply.word is Word.DECLINED and reply.code == frames.DELEGATED:
            raise Lost(Status.DELEGATION, f"no kernel of its own did the work: {self.last_words()}")
        if reply.word is Word.DECLINED and reply.code == frames.ROUNDING:
            raise Lost(Status.STATEFUL, "the processor's rounding or flushing of floats was left changed")
        if reply.word is Word.DECLINED and reply.code == frames.WAITED:
            raise Lost(Status.WRONG_STREAM, "calls on other streams wait for the legacy default stream")
        if reply.word is Word.DECLINED and reply.code == frames.UNCAPTURED:
            raise Lost(Status.UNSUPPORTED, f"it cannot be captured in a graph: {self.last_words()}")
        if reply.word is Word.DECLINED:
            raise Lost(Status.UNSUPPORTED, f"the kernel declined a legal case (refusal {reply.code})")
        if reply.word is Word.FAILED:
            raise Lost(_failed(reply), f"the kernel raised: {self.last_words()}")
        if reply.word is not Word.DONE or reply.number != self.number:
            raise Lost(Status.PROTOCOL, f"reply {reply.word.name} {reply.number} to order {self.number}")

    def _send(self, message: BaseModel) -> None:
        self._push(pack(message))

    def _push(self, frame: bytes) -> None:
        try:
            self.channel.sendall(frame)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._lost() from error

    def _receive(self, timeout_s: float) -> Reply:
        deadline, data = time.monotonic() + timeout_s, b""
        while len(data) < REPLY.size:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self.channel], [], [], min(left, LOOK_SECONDS))
            if ready:
                part = self.channel.recv(REPLY.size - len(data))
                if not part:
                    raise self._lost()
                data += part
                continue
            self._look_now_and_then()
            if time.monotonic() >= deadline:
                self.kill()
                raise Lost(Status.TIMED_OUT, f"no reply within {timeout_s:.0f} s")
        try:
            return frames.parse_reply(data)
        except BadFrame as error:
            raise Lost(Status.PROTOCOL, str(error)) from error

    def _look_now_and_then(self) -> None:
        if time.monotonic() - self.looked_at >= LOOK_SECONDS:
            self.look()
            self.looked_at = time.monotonic()

    def look(self) -> None:
        """Look after it every now and then while it is waited for: not needed where no code of a candidate's runs."""

    def _lost(self) -> Lost:
        """Return how the runner ended."""
        code = self.kill()
        known = -code in signal.Signals.__members__.values()
        name = signal.Signals(-code).name if known else f"signal {-code}" if code < 0 else f"code {code}"
        if self._ran_out(code):
            allowed = f"of {self.memory_bytes >> 20} MiB allowed, it held {self.peak_bytes >> 20} MiB"
            return Lost(Status.OUT_OF_MEMORY, f"the runner ended with {name} for want of memory ({allowed})")
        if name in ("SIGSEGV", "SIGBUS"):
            return Lost(
                Status.OUT_OF_BOUNDS,
                f"{name}: memory outside a call's own buffers was touched, or an input written",
            )
        if name == "SIGXCPU":
            return Lost(Status.TIMED_OUT, "the runner used up its processor time")
        if code < 0:
            return Lost(Status.CRASHED, f"the runner died with {name}")
        return Lost(Status.CRASHED, f"the runner ended by itself with {name}: {self.last_words()}")

    def _ran_out(self, code: int) -> bool:
        """Tell whether memory was the cause of death.

        Either the process had filled its budget, or the system killed a big one, or the C++ runtime ended it over an
        exception it names in the log. The log decides nothing but which of two refusals it is.
        """
        if code >= 0 or not self.memory_bytes:
            return False
        share = self.peak_bytes / self.memory_bytes
        if code == -signal.SIGABRT and "std::bad_alloc" in self.last_words():
            return True
        return share >= (OOM_KILL_SHARE if code == -signal.SIGKILL else FULL_SHARE)

    def kill(self) -> int:
        """Kill the runner's whole group, once, and return its exit code."""
        if self.exit_code is None:
            self.exit_code = self.end()
        return self.exit_code

    def last_words(self) -> str:
        """Return the bounded end of what the runner printed: shown, never parsed."""
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - 400))
        return visible(self.log.read(400).decode(errors="replace")).strip()


def _failed(reply: Reply) -> Status:
    return Status.OUT_OF_MEMORY if reply.code == frames.NO_MEMORY else Status.CRASHED

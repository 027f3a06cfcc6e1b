"""The foundry: parent of builders. It imports the compilers once; every build is a fork that starts with them.

It never sees a source. A builder forked here shuts itself in exactly like one started by itself (see `builder`).
"""

import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.frames import HEADER, body_length, pack, parse, receive_exactly
from kernelwright.core.messages.builder import FOUNDRY_ORDER, StartBuilder
from kernelwright.core.messages.runner import Reap, Reaped, Spawned
from kernelwright.worker import builder

DESCRIPTORS = 2
NICE = 10
"""A tenth of a core that somebody else wants, all of one that nobody does."""
AUTOGROUP = Path("/proc/self/autogroup")
ATTEMPTS, ASK_AGAIN_S = 5, 0.1


class Foundry:
    """Forks builders and reaps them."""

    def __init__(self, channel: socket.socket, without: Sequence[str] = ()) -> None:
        self.channel = channel
        self.without = without
        """Layers left out around builders on purpose."""
        self.ready: set[str] = set()
        """Backends whose compilers are imported."""

    def prepare(self, name: str) -> None:
        """Import what a backend's builds need, once, so that every builder is born with it."""
        if name in self.ready:
            return
        self.ready.add(name)
        for module in getattr(plugins.load("backends", name), "BUILD_IMPORTS", ()):
            with suppress(ImportError):
                importlib.import_module(module)
        gc.collect()
        gc.freeze()

    def start(self, order: StartBuilder, descriptors: list[int]) -> Spawned:
        """Fork one builder in a process group of its own."""
        if order.backend:
            self.prepare(order.backend)
        pid = os.fork()
        if not pid:
            self._be_builder(order, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return Spawned(pid=pid)

    def _be_builder(self, order: StartBuilder, conversation: int, log: int) -> None:
        code = 1
        try:
            os.setsid()
            step_back()
            self.channel.close()
            for source, target in ((conversation, 0), (conversation, 1), (log, 2)):
                os.dup2(source, target)
            os.closerange(3, max(conversation, log) + 1)
            os.chdir(order.folder)
            builder.main(self.without)
            code = 0
        except SystemExit as ended:
            sys.stderr.write(f"{ended.code}\n")
        finally:
            sys.stderr.flush()
            os._exit(code)

    def reap(self, order: Reap) -> Reaped:
        """Kill a builder's group and return how it ended."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(order.pid, signal.SIGKILL)
        _, status, usage = os.wait4(order.pid, 0)
        return Reaped(exit_code=os.waitstatus_to_exitcode(status), peak_bytes=usage.ru_maxrss << 10)

    def serve(self) -> None:
        """Carry out orders until the judge hangs up."""
        while True:
            first, descriptors, _, _ = socket.recv_fds(self.channel, HEADER.size, DESCRIPTORS)
            if not first:
                return
            header = first + receive_exactly(self.channel, HEADER.size - len(first))
            order = parse(receive_exactly(self.channel, body_length(header)), FOUNDRY_ORDER)
            if isinstance(order, StartBuilder):
                self.channel.sendall(pack(self.start(order, descriptors)))
            else:
                self.channel.sendall(pack(self.reap(order)))


def step_back() -> None:
    """Let everybody else go first: another run may be timing on these cores, and only timing has the device's lock."""
    os.nice(NICE)
    # Where sessions are groups to the scheduler, a process is nice within its own alone; its group must be, too.
    for _ in range(ATTEMPTS):
        try:
            AUTOGROUP.write_text(str(NICE))
        except BlockingIOError:  # one process at a time may ask for it
            time.sleep(ASK_AGAIN_S)
        except OSError:  # there are no such groups here
            return
        else:
            return


if __name__ == "__main__":
    Foundry(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]).serve()

"""The nursery: a fork server with torch already imported, so that a fresh runner costs milliseconds, not seconds.

1. It becomes the first process of a list of its own, enters its namespaces and puts up a root, before it imports
   anything heavy: whatever ends it ends everything born here.
2. It imports torch and the backends, and runs no tensor operation (a child forked after one parallel op hangs in the
   OpenMP runtime) and no candidate code.
3. Every runner is forked into a ward of its own, shuts itself in, says how far that went, and only then loads anything.
Both arms of a comparison are born here, which keeps the process layout of the two alike.
"""

import gc
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from kernelwright.core import plugins
from kernelwright.core.environment import close_off
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.frames import HEADER, body_length, pack, parse, receive_exactly
from kernelwright.core.messages.runner import NURSERY_ORDER, Reap, Reaped, Spawn, Spawned
from kernelwright.worker import libc, namespaces, runner
from kernelwright.worker.sandbox import Ground, shut_in_launcher, sweep
from kernelwright.worker.wards import Ward, Wards

DESCRIPTORS = 6
"""Control socket, artefact, input slab, output slab, log."""
MOST_LEVEL_BYTES = 1024
NATIVE = ("cpp",)
"""Languages a plain nursery serves: it imports no framework, so that there is none in memory to borrow from."""


@dataclass
class Nursery:
    """What every runner is born from."""

    channel: socket.socket
    ground: Ground
    wards: Wards | None
    backends: Mapping[str, ModuleType]
    living: dict[int, tuple[int, Ward | None]] = field(default_factory=dict)
    """By the number the judge knows a runner by: its number here, and its ward."""
    born: int = 0

    def spawn(self, order: Spawn, descriptors: list[int]) -> Spawned:
        """Fork a runner that owns nothing but its descriptors; return once it is shut in."""
        self.born += 1
        ward = self.wards.enter() if self.wards else None
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            self._be_runner(order, descriptors, writing)
        if self.wards:
            self.wards.leave()
        for descriptor in (*descriptors, writing):
            os.close(descriptor)
        with os.fdopen(reading, "rb") as said:
            # Written before anything of the candidate is loaded; a runner that fails on the way says nothing.
            number, _, level = said.read(MOST_LEVEL_BYTES).decode().partition(" ")
        # Until it has said so, nobody outside knows its number there; 0 stands for a runner that never was.
        name = int(number or 0)
        self.living[name] = (pid, ward)
        if not name:
            self.reap(name)
        return Spawned(pid=name, sandbox=level)

    def _be_runner(self, order: Spawn, descriptors: list[int], level: int) -> None:
        try:
            self.channel.detach()
            if order.kind == "launcher":
                self._be_launcher(order, descriptors, level)
            control, artefact, inputs, outputs, log, lots = descriptors
            os.dup2(log, 1)
            os.dup2(log, 2)
            _close_all_but(0, 1, 2, control, artefact, inputs, outputs, lots, level)
            # The judge counts processes from outside; so does the /proc that is still mounted here.
            number = str(Path("/proc/self").readlink())
            needs = runner.needs_of(order, self.ground.user(self.born))
            reached = runner.shut_in(self.ground, needs, artefact, warded=self.wards is not None)
            os.write(level, f"{number} {reached}".encode())
            os.close(level)
            runner.serve(control, inputs, outputs, lots, self.backends)
        except Exception:  # noqa: BLE001 - the worker's outermost frame
            traceback.print_exc()
        finally:
            os._exit(0)

    def _be_launcher(self, order: Spawn, descriptors: list[int], level: int) -> None:
        from kernelwright.worker import device

        control, times, log = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        _close_all_but(0, 1, 2, control, times, level)
        number = str(Path("/proc/self").readlink())
        reached = shut_in_launcher()
        os.write(level, f"{number} {reached}".encode())
        os.close(level)
        device.serve(control, times, order.device)
        os._exit(0)

    def reap(self, name: int) -> Reaped:
        """Kill a runner and everything it started, and return how it ended."""
        pid, ward = self.living.pop(name)
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        if ward:
            ward.end()
        else:
            sweep([pid for pid, _ in self.living.values()])
        return Reaped(exit_code=os.waitstatus_to_exitcode(status), peak_bytes=usage.ru_maxrss << 10)

    def serve(self) -> None:
        """Carry out orders until the judge hangs up."""
        while True:
            first, descriptors, _, _ = socket.recv_fds(self.channel, HEADER.size, DESCRIPTORS)
            if not first:
                return
            header = first + receive_exactly(self.channel, HEADER.size - len(first))
            order = parse(receive_exactly(self.channel, body_length(header)), NURSERY_ORDER)
            if isinstance(order, Spawn):
                self.channel.sendall(pack(self.spawn(order, descriptors)))
            elif isinstance(order, Reap):
                self.channel.sendall(pack(self.reap(order.pid)))


def _close_all_but(*kept: int) -> None:
    """Close every descriptor but these."""
    last = -1
    for descriptor in (*sorted(kept), resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        if descriptor > last + 1:  # an empty range from 0 would close everything
            os.closerange(last + 1, descriptor)
        last = descriptor


def _backends(only: Sequence[str] | None) -> dict[str, ModuleType]:
    """Return the backends that can be imported here; looking one up costs a runner 6 ms."""
    found = {}
    for name in only or plugins.names("backends"):
        with suppress(KernelwrightError):
            found[name] = plugins.load("backends", name)
    return found


def _import_for_runners(backends: Mapping[str, ModuleType]) -> None:
    for backend in backends.values():
        for module in getattr(backend, "RUN_IMPORTS", ()):
            with suppress(ImportError):
                importlib.import_module(module)


def main(descriptor: int, without: list[str]) -> None:
    """Serve orders until the judge hangs up."""
    own_user = None if "pids" in without else namespaces.enter(namespaces.NEW_PIDS)
    if own_user is not None and (first := os.fork()):
        # From here on this process only stands for the one that does the work, which dies with it.
        close_off()
        os.closerange(3, descriptor + 1)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
    ground = Ground.prepare(os.environ["HOME"], without, own_user=bool(own_user))
    wards = None
    if own_user is not None:
        with suppress(OSError):
            wards = Wards()
    if not wards:
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
    # Only now: it makes the maps of user namespaces unwritable, and what changes users would undo it.
    close_off()
    channel = socket.socket(fileno=descriptor)
    with suppress(BlockingIOError):
        # A judge that died before the line above killed nobody; importing would outlive it by seconds.
        if not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            return
    if "plain" not in without:
        # Inductor's imports ask whether there is a GPU, and no child could open one that was asked directly; and they
        # start a pool of compilers, which nobody here would use.
        os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        import torch  # noqa: F401 - imported once here, inherited by every runner

    if "device" in without:
        from kernelwright.worker import device  # noqa: F401 - and what a launcher needs, likewise

    backends = _backends(NATIVE if "plain" in without else None)
    if "host" in without:
        _import_for_runners(backends)
    nursery = Nursery(channel, ground, wards, backends)
    gc.collect()
    gc.freeze()
    nursery.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

"""Wards: one list of processes per runner, so that its end is the end of everything it ever started.

1. A small process, forked before torch is imported, keeps one ward ready: a pid namespace with an idle first process.
2. The nursery enters the ward's list for one fork; the runner is number two in it, and the nursery's own child, so that
   the real way it ended is known (a first process would shrug off an abort).
3. When the first process is killed, the kernel kills all others of the ward before it says so.
No process is named by its number here: the nursery may count from one in a list of its own.
"""

import os
import select
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass

from kernelwright.worker import libc
from kernelwright.worker.namespaces import NEW_PIDS, join, unshare

END_SECONDS = 1.0


@dataclass(frozen=True)
class Ward:
    """A pid namespace, held by a descriptor of its first process."""

    first: int
    """Becomes readable when that process, and with it everything else in the ward, is gone."""

    def end(self) -> None:
        """Kill everything in the ward and wait until it is gone."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.first, signal.SIGKILL)
        select.select([self.first], [], [], END_SECONDS)
        os.close(self.first)


class Wards:
    """The supply of wards."""

    def __init__(self) -> None:
        """Start the supplier; raise OSError where the system does not grant what a ward takes."""
        self.own = _own_namespace()
        # Proven before anything is promised: without a way to watch it, or a way back, a ward is of no use.
        os.close(os.pidfd_open(os.getpid()))
        join(self.own, NEW_PIDS)
        self.channel, theirs = socket.socketpair()
        if not os.fork():
            self.channel.close()
            _supply(theirs, self.own)
        theirs.close()

    def enter(self) -> Ward:
        """Have the next forked process born in a fresh ward."""
        self.channel.sendall(b"!")
        namespace, first = _received(self.channel)
        join(namespace, NEW_PIDS)
        os.close(namespace)
        return Ward(first)

    def leave(self) -> None:
        """Have processes born beside the nursery again."""
        join(self.own, NEW_PIDS)


def _own_namespace() -> int:
    return os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


def _received(channel: socket.socket) -> tuple[int, int]:
    said, descriptors, _, _ = socket.recv_fds(channel, 1, 2)
    if not said:
        raise SystemExit("nursery: the supply of wards has ended")
    namespace, first = descriptors
    return namespace, first


def _supply(channel: socket.socket, own: int) -> None:
    """Hand out wards for as long as the nursery lives; the next one is made while nobody waits for it."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ours, theirs = socket.socketpair()
    while True:
        unshare(NEW_PIDS)
        if not os.fork():
            _be_first(theirs)
        join(own, NEW_PIDS)
        ward = _received(ours)
        if not channel.recv(1):
            os._exit(0)
        socket.send_fds(channel, [b"."], ward)
        for descriptor in ward:
            os.close(descriptor)


def _be_first(channel: socket.socket) -> None:
    """Be the first process of a ward: it shows itself, does nothing and dies with its parent."""
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    socket.send_fds(channel, [b"."], [_own_namespace(), os.pidfd_open(os.getpid())])
    os.closerange(0, 1024)
    while True:
        signal.pause()

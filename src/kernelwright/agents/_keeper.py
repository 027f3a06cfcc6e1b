"""Keeps a program and all it starts: a process between ours and a program, which leaves nothing of it behind.

`python -I -S _keeper.py FD PROGRAM ARGUMENTS...`; it is run by its path and imports nothing of ours, so it starts fast.

1. The program starts in a session of its own. Whatever loses its parent below the keeper becomes the keeper's child,
   those too that went into another session.
2. The socket FD ends when we want the program to stop, or when we are dead: the program is asked to end, and killed a
   moment later.
3. When the program has ended, the rest is killed, and the keeper ends as the program did: same code, same signal.
   A program that cannot be started is told through the socket.
"""

import ctypes
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ASKED_S = 0.5
"""How long a program that was asked to end may take."""
KILLED_S = 1.0
"""How long killing may take: one that starts others as fast as they are killed is left."""
NOT_STARTED = 127


def main() -> None:
    """Keep the program that the command line names."""
    control, words = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    control.set_inheritable(False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    bell, ring = os.pipe()
    os.set_blocking(bell, False)
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    pid = started(words, control)
    status = ended(pid, control, bell)
    if status is None:
        for ask in (os.kill, os.killpg):  # its group may not be there yet
            with suppress(ProcessLookupError):
                ask(pid, signal.SIGTERM)
        until = time.monotonic() + ASKED_S
        while time.monotonic() < until and has_children():
            time.sleep(0.01)
    kill_children()
    leave(status)


def prctl(option: int, value: int) -> None:
    """Change a property of this process."""
    ctypes.CDLL(None).prctl(option, ctypes.c_long(value), 0, 0, 0)


def started(words: list[str], control: socket.socket) -> int:
    """Start the program and return its number."""
    keeper = os.getpid()
    if pid := os.fork():
        return pid
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(NOT_STARTED)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and would hand on
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(words[0], words)
    except OSError as error:
        control.sendall((error.strerror or str(error)).encode())
        os._exit(NOT_STARTED)


def ended(pid: int, control: socket.socket, bell: int) -> int | None:
    """Return how the program ended; None if it is to be stopped."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(bell, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if bell in ready:
            with suppress(BlockingIOError):
                os.read(bell, 4096)
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == pid:
                    return found[1]
        if control.fileno() in ready:
            return None


def has_children() -> bool:
    """Tell whether anything below is alive; what has ended is put away."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill_children() -> None:
    """Kill whatever is below; who loses its parent by that comes next."""
    until = time.monotonic() + KILLED_S
    while has_children() and time.monotonic() < until:
        for pid in children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def children() -> list[int]:
    """Return the numbers of the keeper's children."""
    found, mine = [], str(os.getpid())
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in brackets may hold anything; after it come the state and the parent.
            if path.read_text(errors="replace").rpartition(")")[2].split()[1] == mine:
                found.append(int(path.parent.name))
    return found


def leave(status: int | None) -> None:
    """End as the program did."""
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGTERM
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # nobody can change what SIGKILL does
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()

"""The nursery: a fork server with torch already imported, so that a fresh runner costs milliseconds, not seconds.

It runs no tensor operation (a child forked after one parallel op hangs in the OpenMP runtime) and no candidate code.
Both arms of a comparison are born here, which keeps the process layout of the two alike.
"""

import os
import signal
import socket
import sys
import traceback
from contextlib import suppress

from kernelwright.core.frames import HEADER, body_length, pack, parse
from kernelwright.core.messages import NURSERY_ORDER, Reap, Reaped, Spawn, Spawned
from kernelwright.worker import runner

DESCRIPTORS = 5
"""Control socket, artefact, input slab, output slab, log."""


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Return one frame's body and the descriptors that came with it; empty at the end."""
    first, descriptors, _, _ = socket.recv_fds(channel, HEADER.size, DESCRIPTORS)
    if not first:
        return b"", []
    header = first + _exactly(channel, HEADER.size - len(first))
    return _exactly(channel, body_length(header)), descriptors


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = channel.recv(count - len(data))
        if not part:
            raise SystemExit("nursery: the judge hung up inside a frame")
        data += part
    return data


def _spawn(order: Spawn, descriptors: list[int], channel: socket.socket) -> int:
    """Fork a runner that owns nothing but its descriptors."""
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    try:
        channel.close()
        control, artefact, inputs, outputs, log = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        runner.shut_in(order.folder)
        runner.serve(control, artefact, inputs, outputs)
    except Exception:  # noqa: BLE001 - the worker's outermost frame
        traceback.print_exc()
    finally:
        os._exit(0)


def _reap(pid: int) -> int:
    """Kill a runner's whole group and return how it ended."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(descriptor: int) -> None:
    """Serve orders until the judge hangs up."""
    import torch  # noqa: F401 - imported once here, inherited by every runner

    channel = socket.socket(fileno=descriptor)
    while True:
        body, descriptors = _receive(channel)
        if not body:
            return
        order = parse(body, NURSERY_ORDER)
        if isinstance(order, Spawn):
            channel.sendall(pack(Spawned(pid=_spawn(order, descriptors, channel))))
        elif isinstance(order, Reap):
            channel.sendall(pack(Reaped(exit_code=_reap(order.pid))))


if __name__ == "__main__":
    main(int(sys.argv[1]))

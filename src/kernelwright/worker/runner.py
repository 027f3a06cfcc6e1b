"""The runner: loads one artefact, executes calls on the judge's buffers, and says nothing but 16-byte replies.

1. It is forked by the nursery with four descriptors: control socket, artefact, input slab, output slab.
2. It shuts itself in (own session, limits, no new privileges, death with its parent).
3. It reads the `Job`, maps the buffers, binds the artefact: from here on candidate code runs in this process.
4. It answers READY, then one DONE per `Run` or `Collect`. It is killed, never asked to leave.
"""

import ctypes
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from kernelwright.core import plugins
from kernelwright.core.case import Case
from kernelwright.core.frames import Reply, Word, pack_reply, read_message
from kernelwright.core.messages import RUNNER_ORDER, Collect, Job, Run
from kernelwright.worker.mapping import map_region

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, SIGKILL = 1, 38, 9
CPU_SECONDS = 600
FILE_BYTES = 64 << 20
OPEN_FILES = 256


def shut_in(folder: str) -> None:
    """Enter the sandbox as far as one process can do it to itself."""
    os.setsid()
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    os.chdir(folder)


def serve(control: int, artefact: int, inputs: int, outputs: int) -> None:
    """Execute orders until the judge hangs up."""
    channel = socket.socket(fileno=control)
    stream = channel.makefile("rb")
    job = read_message(stream, RUNNER_ORDER)
    if not isinstance(job, Job):
        return
    try:
        closures, addresses = _bind(job, artefact, inputs, outputs)
    except Exception as error:  # noqa: BLE001 - the worker's outermost frame: whatever a candidate raises is a value
        _complain(error)
        channel.sendall(pack_reply(Reply(Word.FAILED, 0, 0)))
        return
    channel.sendall(pack_reply(Reply(Word.READY, 0, len(closures))))
    _loop(channel, stream, job, closures, addresses)


def _bind(
    job: Job, artefact: int, inputs: int, outputs: int
) -> tuple[list[Callable[[], Any]], list[dict[str, int]]]:
    """Map every region and bind the artefact to the addresses."""
    slabs = {"inputs": inputs, "outputs": outputs}
    addresses = [
        {
            name: map_region(slabs[region.slab], region, writable=region.slab == "outputs")
            for name, region in call.regions.items()
        }
        for call in job.calls
    ]
    backend = plugins.load("backends", job.backend)
    bound = backend.bind(
        Path(f"/proc/self/fd/{artefact}"),
        job.cases,
        [(call.case, found) for call, found in zip(job.calls, addresses, strict=True)],
    )
    return bound, addresses


def _loop(
    channel: socket.socket,
    stream: BinaryIO,
    job: Job,
    closures: list[Callable[[], Any]],
    addresses: list[dict[str, int]],
) -> None:
    returned: list[tuple[int, Any]] = []
    while (order := read_message(stream, RUNNER_ORDER)) is not None:
        if isinstance(order, Run):
            returned.clear()
            channel.sendall(pack_reply(_run(order, closures, returned)))
        elif isinstance(order, Collect):
            for index, value in returned:
                _copy_out(job.cases[job.calls[index].case], addresses[index], value)
            returned.clear()
            channel.sendall(pack_reply(Reply(Word.DONE, 0, order.number)))


def _run(order: Run, closures: list[Callable[[], Any]], returned: list[tuple[int, Any]]) -> Reply:
    """Execute a batch; keep what was returned until it is collected."""
    for index in range(order.first, order.first + order.count):
        try:
            value = closures[index]()
        except Exception as error:  # noqa: BLE001 - the worker's outermost frame
            _complain(error)
            return Reply(Word.FAILED, 0, index)
        if value.__class__ is int:
            if value:
                return Reply(Word.DECLINED, value & 0xFF, index)
        else:
            returned.append((index, value))
    return Reply(Word.DONE, 0, order.number)


def _copy_out(case: Case, addresses: dict[str, int], value: Any) -> None:
    """Copy returned tensors into the judge's buffers, only if they are exactly what the case declares."""
    from kernelwright.backends.eager import tensor_at

    values = value if isinstance(value, tuple) else (value,)
    if len(values) != len(case.outputs):
        return
    for spec, tensor in zip(case.outputs, values, strict=True):
        target = tensor_at(spec, addresses[spec.name])
        # A tensor of another shape or type is left uncollected: the poison stays and the judge says so.
        if tuple(tensor.shape) == spec.shape and tensor.dtype == target.dtype:
            target.copy_(tensor)


def _complain(error: BaseException) -> None:
    """Leave a bounded line in the log; it is shown, never parsed."""
    sys.stderr.write(f"{type(error).__name__}: {error}"[:4000] + "\n")
    sys.stderr.flush()

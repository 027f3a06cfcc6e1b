"""The runner: loads one artefact, executes calls on the judge's buffers, and says nothing but 16-byte replies.

1. It is forked by the nursery with four descriptors: control socket, artefact, input slab, output slab.
2. It shuts itself in (`worker/sandbox.py`), with a copy of the artefact in a folder of its own.
3. It reads the `Job`, maps the buffers, binds the artefact: from here on candidate code runs in this process.
4. It answers READY, then one DONE per `Run` or `Collect`. It is killed, never asked to leave.
"""

import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

from kernelwright.backends._cuda_memory import map_shared
from kernelwright.core import plugins
from kernelwright.core.case import Case
from kernelwright.core.frames import (
    DELEGATED,
    NO_MEMORY,
    ROUNDING,
    UNCAPTURED,
    WAITED,
    Reply,
    Word,
    pack_reply,
    read_message,
)
from kernelwright.core.messages.runner import (
    LOT_BYTES,
    RUNNER_ORDER,
    Audit,
    Capture,
    Close,
    Collect,
    Job,
    Overlap,
    Region,
    Replay,
    Run,
    Spawn,
)
from kernelwright.worker import namespaces
from kernelwright.worker.mapping import Doors, map_region
from kernelwright.worker.namespaces import NEW_NETWORK
from kernelwright.worker.sandbox import Ground, Needs, close_door, cover_files, own_folder
from kernelwright.worker.seccomp import Rules

if TYPE_CHECKING:
    from kernelwright.worker.streams import Captured

CPU_SECONDS = 600
FILE_BYTES = 64 << 20
FOLDER_BYTES = 256 << 20
OPEN_FILES = 256
ARTEFACT = "artefact"


def needs_of(order: Spawn, user: int) -> Needs:
    """Return how much a runner may use."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    return Needs(
        folder=order.folder,
        folder_bytes=FOLDER_BYTES,
        memory_bytes=order.memory_bytes,
        cpu_seconds=CPU_SECONDS * threads,
        file_bytes=FILE_BYTES,
        open_files=OPEN_FILES,
        user=user,
        threads=threads,
    )


def shut_in(ground: Ground, needs: Needs, artefact: int, *, warded: bool) -> str:
    """Enter the sandbox with a copy of the artefact in its folder; return the names of the layers in force."""
    os.setsid()
    reached = (["pids"] if warded else []) + own_folder(ground, needs, warded=warded)
    on_device = "device" in ground.without
    if on_device:
        with suppress(OSError):
            namespaces.unshare(NEW_NETWORK)
            reached.append("network")
        reached += cover_files(ground, needs)
    # By descriptor and as a copy: the file the judge keeps is not even readable from in here.
    with os.fdopen(artefact, "rb") as source, Path(ARTEFACT).open("wb") as target:
        shutil.copyfileobj(source, target)
    Path(ARTEFACT).chmod(0o555)
    # In a ward of its own there is nobody else to signal; without one, the filter sees to it. A GPU's driver does not
    # start without a local socket; in a network of its own there is nobody to reach by it.
    rules = Rules(own_pid=None if warded else os.getpid(), local_sockets=on_device, compiles=on_device)
    return close_door(ground, needs, rules, reached)


def serve(control: int, inputs: int, outputs: int, lots: int, backends: Mapping[str, ModuleType]) -> None:
    """Execute orders until the judge hangs up."""
    channel = socket.socket(fileno=control)
    stream = channel.makefile("rb")
    job = read_message(stream, RUNNER_ORDER)
    if not isinstance(job, Job):
        return
    try:
        backend = backends.get(job.backend) or plugins.load("backends", job.backend)
        closures, addresses, doors = _bind(job, backend, inputs, outputs)
        os.close(inputs)  # mapped; nobody reads around a closed door
        os.close(outputs)
    except Exception as error:  # noqa: BLE001 - the worker's outermost frame: whatever a candidate raises is a value
        channel.sendall(pack_reply(Reply(Word.FAILED, _complain(error), 0)))
        return
    channel.sendall(pack_reply(Reply(Word.READY, 0, len(closures))))
    _loop(channel, stream, job, backend, closures, addresses, doors, lots)


def _bind(
    job: Job, backend: ModuleType, inputs: int, outputs: int
) -> tuple[list[Callable[[], Any]], list[dict[str, int]], Doors]:
    """Map every region and bind the artefact to the addresses."""
    slabs = {"inputs": inputs, "outputs": outputs}
    # Mapped once each: two inputs may share a storage, and two calls their buffers.
    regions = dict.fromkeys(region for call in job.calls for region in call.regions.values())
    if job.device is None:
        mapped = {
            region: map_region(slabs[region.slab], region, writable=region.slab == "outputs")
            for region in regions
        }
    else:
        mapped = _on_device(job, regions, inputs, outputs)
    specs = [(*case.inputs, *case.outputs) for case in job.cases]
    addresses = [
        {
            spec.name: mapped[call.regions[spec.name]] + spec.offset * spec.dtype.itemsize
            for spec in specs[call.case]
        }
        for call in job.calls
    ]
    calls = [(call.case, found) for call, found in zip(job.calls, addresses, strict=True)]
    where = {} if job.device is None else {"device": f"cuda:{job.device}"}
    bound = backend.bind(Path("/proc/self/cwd", ARTEFACT), job.cases, calls, **where)
    # Memory of a GPU lies in one allocation, which is open or closed as a whole.
    closable = regions if job.device is None else {}
    spans = [
        [
            (mapped[region] - region.start, region.length)
            for region in call.regions.values()
            if region in closable and region.slab == "inputs" and region.length
        ]
        for call in job.calls
    ]
    return bound, addresses, Doors(spans)


def _on_device(job: Job, regions: Iterable[Region], inputs: int, outputs: int) -> dict[Region, int]:
    """Map the judge's memory of a GPU, inputs read-only, and return where each region's storage starts."""
    assert job.device is not None
    bases = {
        "inputs": map_shared([inputs], [job.input_bytes], job.device, writable=False).address,
        "outputs": map_shared([outputs], [job.output_bytes], job.device).address,
    }
    return {region: bases[region.slab] + region.offset + region.start for region in regions}


def _loop(
    channel: socket.socket,
    stream: BinaryIO,
    job: Job,
    backend: ModuleType,
    closures: list[Callable[[], Any]],
    addresses: list[dict[str, int]],
    doors: Doors,
    lots: int,
) -> None:
    returned: list[tuple[int, Any]] = []
    streams = _Streams(job, closures, addresses)
    while (order := read_message(stream, RUNNER_ORDER)) is not None:
        if isinstance(order, Run):
            returned.clear()
            reply = _run(order, closures, returned, lots)
            _drain(job)
            channel.sendall(pack_reply(reply))
        elif isinstance(order, Close):
            doors.close(order.calls)
            channel.sendall(pack_reply(Reply(Word.DONE, 0, order.number)))
        elif isinstance(order, Collect):
            for index, value in returned:
                _copy_out(job, index, addresses[index], value)
            returned.clear()
            _drain(job)
            channel.sendall(pack_reply(Reply(Word.DONE, 0, order.number)))
        elif isinstance(order, Audit):
            channel.sendall(pack_reply(_audit(order, backend, closures)))
        elif isinstance(order, Overlap | Capture | Replay):
            channel.sendall(pack_reply(streams.obey(order)))


def _numbers(order: Run, lots: int) -> Iterable[int]:
    """Return the calls of a batch; those that are drawn, one by one as they are made."""
    if order.drawn:
        return (int.from_bytes(os.read(lots, LOT_BYTES), "little") for _ in range(order.drawn))
    return order.calls or range(order.first, order.first + order.count)


def _run(order: Run, closures: list[Callable[[], Any]], returned: list[tuple[int, Any]], lots: int) -> Reply:
    """Execute a batch; keep what was returned until it is collected."""
    for index in _numbers(order, lots):
        try:
            value = closures[index]()
        except Exception as error:  # noqa: BLE001 - the worker's outermost frame
            return Reply(Word.FAILED, _complain(error), index)
        if value.__class__ is int:
            if value:
                return Reply(Word.DECLINED, value & 0xFF, index)
        else:
            returned.append((index, value))
    if not _rounds_to_nearest():
        return Reply(Word.DECLINED, ROUNDING, order.number)
    return Reply(Word.DONE, 0, order.number)


def _audit(order: Audit, backend: ModuleType, closures: list[Callable[[], Any]]) -> Reply:
    """Say whether a call had the GPU run kernels that are not the file's own."""
    try:
        foreign = backend.foreign_kernels(Path(ARTEFACT), closures[order.call])
    except Exception as error:  # noqa: BLE001 - the worker's outermost frame
        return Reply(Word.FAILED, _complain(error), order.number)
    if not foreign:
        return Reply(Word.DONE, 0, order.number)
    sys.stderr.write(f"kernels of others ran: {', '.join(foreign)}\n"[:4000])
    sys.stderr.flush()
    return Reply(Word.DECLINED, DELEGATED, order.number)


class _Streams:
    """Calls on streams of their own and in graphs, on a GPU."""

    def __init__(self, job: Job, closures: list[Callable[[], Any]], addresses: list[dict[str, int]]) -> None:
        self.job, self.closures, self.addresses = job, closures, addresses
        self.call = 0
        self.captured: Captured | None = None
        self.refusal = 0
        """Code of the last call that declined."""

    def obey(self, order: Overlap | Capture | Replay) -> Reply:
        """Carry out an order."""
        self.refusal = 0
        try:
            if isinstance(order, Overlap):
                done = self._overlap(order)
            elif isinstance(order, Capture):
                done = self._capture(order)
            else:
                done = self._replay(order)
        except Exception as error:  # noqa: BLE001 - the worker's outermost frame
            code = _complain(error)
            if isinstance(order, Capture):
                return Reply(Word.DECLINED, UNCAPTURED, order.number)
            return Reply(Word.FAILED, code, order.number)
        if self.refusal:
            return Reply(Word.DECLINED, self.refusal, order.number)
        return done

    def _finish(self, number: int, value: Any) -> None:
        """Copy what a call returned on the stream it ran on; what is not there yet never will be."""
        if value.__class__ is int:
            self.refusal = value & 0xFF or self.refusal
        else:
            _copy_out(self.job, number, self.addresses[number], value)

    def _run(self, number: int) -> None:
        self._finish(number, self.closures[number]())

    def _overlap(self, order: Overlap) -> Reply:
        from kernelwright.worker.streams import overlapped

        warm = [partial(self._run, number) for number in order.warm]
        lanes = [[partial(self._run, number) for number in lane] for lane in order.lanes]
        if overlapped(warm, lanes, order.blocked_ms / 1e3):
            return Reply(Word.DONE, 0, order.number)
        return Reply(Word.DECLINED, WAITED, order.number)

    def _capture(self, order: Capture) -> Reply:
        from kernelwright.worker.streams import Captured

        self.call, self.captured = order.call, Captured(self.closures[order.call])
        if self.captured.value.__class__ is int:
            self.refusal = self.captured.value & 0xFF
        return Reply(Word.DONE, 0, order.number)

    def _replay(self, order: Replay) -> Reply:
        assert self.captured is not None, "captured first"
        self.captured.replay(is_aside=order.is_aside)
        self._finish(self.call, self.captured.value)
        _drain(self.job)
        return Reply(Word.DONE, 0, order.number)


def _rounds_to_nearest() -> bool:
    """Tell whether floats still round to nearest and keep what is below the normal range."""
    one, little, least = float("1"), float("5e-17"), sys.float_info.min  # read at run time: nothing to fold
    return one + little == one and -one - little == -one and least / 4 > 0


def _drain(job: Job) -> None:
    """Wait for the GPU; what a candidate hides from this wait is missing when the judge looks."""
    if job.device is not None:
        import torch

        torch.cuda.synchronize()


def _copy_out(job: Job, index: int, addresses: dict[str, int], value: Any) -> None:
    """Copy returned tensors into the judge's buffers, only if they are exactly what the case declares."""
    from kernelwright.backends._tensors import tensor_at

    case: Case = job.cases[job.calls[index].case]
    where = "cpu" if job.device is None else f"cuda:{job.device}"
    values = value if isinstance(value, tuple) else (value,)
    if len(values) != len(case.outputs):
        return
    for spec, tensor in zip(case.outputs, values, strict=True):
        target = tensor_at(spec, addresses[spec.name], where)
        # A tensor of another shape or type is left uncollected: the poison stays and the judge says so.
        # So is a subclass, which could compute when it is copied: after the clock has stopped.
        if type(tensor) is not type(target):
            continue
        if tuple(tensor.shape) == spec.shape and tensor.dtype == target.dtype:
            target.copy_(tensor)


def _complain(error: BaseException) -> int:
    """Leave a bounded line in the log, shown and never parsed; return the code that says whether memory ran out."""
    text = f"{type(error).__name__}: {error}"
    sys.stderr.write(text[:4000] + "\n")
    sys.stderr.flush()
    # torch has no class of its own for it on the CPU.
    return NO_MEMORY if isinstance(error, MemoryError) or "can't allocate memory" in text else 0

"""The GPU runner: launches plans on the judge's buffers and times them in captured graphs. Trusted code.

1. Forked without a CUDA context (one does not survive a fork), with control socket and times slab. It makes a context
   at once; a job follows, with input and output memory as descriptors. The checks of one candidate are several jobs:
   nothing of one is left when the next comes.
2. `Run` launches calls and waits for them. `Time` loads an arm anew, captures calls of one in a graph, in the order
   the judge chose, replays it, and leaves the seconds of each replay in the times slab: all that is long is done
   before it is this launcher's turn, while others do the same.
3. Only plans and trusted baselines run here. Inputs are mapped read-only for plans: the hardware refuses a write.
"""

import mmap
import os
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernelwright.backends._baseline import function_of
from kernelwright.backends._cuda_memory import map_shared
from kernelwright.backends._tensors import torch_dtype
from kernelwright.core.case import TensorSpec
from kernelwright.core.frames import (
    HEADER,
    NO_MEMORY,
    WAITED,
    Reply,
    Word,
    body_length,
    pack_reply,
    parse,
    read_message,
    receive_exactly,
)
from kernelwright.core.messages.runner import (
    RUNNER_ORDER,
    Capture,
    Close,
    Collect,
    DeviceJob,
    Leave,
    Overlap,
    Replay,
    Run,
    RunnerOrder,
    Time,
    TimedArm,
)
from kernelwright.core.plan import LaunchPlan
from kernelwright.worker.launcher import LaunchFailed, Modules, PreparedCall
from kernelwright.worker.streams import CallGraph, Captured, overlapped

WARM_UP = 2
MOST_BUFFERS = 253
"""Descriptors in one message: Linux takes no more."""


class Launcher:
    """One job on one GPU."""

    def __init__(self, job: DeviceJob, inputs: Sequence[int], outputs: int, times: int) -> None:
        self.job = job
        self.inputs = map_shared(inputs, job.input_bytes, job.index, writable=False)
        self.slabs = {"inputs": self.inputs, "outputs": map_shared([outputs], [job.output_bytes], job.index)}
        self.times = mmap.mmap(times, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self.modules = Modules(Path(job.folder))
        self.captured: Captured | None = None
        self.graph: CallGraph | None = None
        self.made: Sequence[int] = ()
        """The calls of the graph."""
        self.arms: dict[int, list[Callable[[], Any]]] = {}
        self.kernels: dict[int, Modules] = {}
        """Those of every arm that has a plan."""
        self.prepared: dict[int, Callable[[], None]] = {}
        self.baselines: dict[TimedArm, Callable[..., Any]] = {}

    def close(self) -> None:
        """Let go of kernels, workspaces and buffers."""
        torch.cuda.synchronize()
        self.captured = self.graph = None
        for held in (self.arms, self.prepared, self.baselines):
            held.clear()
        for modules in (self.modules, *self.kernels.values()):
            modules.unload()
        for slab in self.slabs.values():
            slab.close()
        torch.cuda.empty_cache()

    def prepare(
        self,
        plan: LaunchPlan | None,
        modules: Modules,
        number: int,
        spaces: dict[str, torch.Tensor] | None = None,
    ) -> PreparedCall:
        """Return a plan bound to the buffers of a call, with workspaces of its own or these."""
        call = self.job.calls[number]
        case = self.job.cases[call.case]
        if plan is None:
            raise LaunchFailed(f"there is no plan for {case.label}")
        addresses = {
            spec.name: self._address(number, spec) + spec.offset * spec.dtype.itemsize
            for spec in (*case.inputs, *case.outputs)
        }
        return PreparedCall(plan, case, modules, addresses, spaces)

    def _address(self, number: int, spec: TensorSpec) -> int:
        """Return where the storage of a tensor of a call starts."""
        region = self.job.calls[number].regions[spec.name]
        return int(self.slabs[region.slab].address) + region.offset + region.start

    def tensor(self, number: int, spec: TensorSpec) -> torch.Tensor:
        """Return a tensor of a call as torch sees it."""
        kind = torch_dtype(spec.dtype)
        if spec.numel == 0:
            return torch.empty(spec.shape, dtype=kind, device="cuda")
        region = self.job.calls[number].regions[spec.name]
        raw = self.slabs[region.slab].bytes_view(
            region.offset + region.start, spec.storage_elements * spec.dtype.itemsize
        )
        found: torch.Tensor = raw.view(kind).as_strided(spec.shape, spec.element_strides, spec.offset)
        return found

    def run(self, order: Run) -> Reply:
        """Launch calls and wait for all of them."""
        for number in order.calls or range(order.first, order.first + order.count):
            if number not in self.prepared:
                # Once: a batch that is timed by the judge's clock finds every call bound.
                self.prepared[number] = self._own(number)
            self.prepared[number]()
        torch.cuda.synchronize()
        return Reply(Word.DONE, 0, order.number)

    def _own(self, number: int) -> Callable[[], None]:
        """Return what launches a call of the job's own plan, with workspaces of its own."""
        return self.prepare(self.job.plans[self.job.calls[number].case], self.modules, number).run

    def overlap(self, order: Overlap) -> Reply:
        """Launch lanes of calls at once, one stream each."""
        warm = [self._own(number) for number in order.warm]
        lanes = [[self._own(number) for number in lane] for lane in order.lanes]
        if overlapped(warm, lanes, order.blocked_ms / 1e3):
            return Reply(Word.DONE, 0, order.number)
        return Reply(Word.DECLINED, WAITED, order.number)

    def capture(self, order: Capture) -> Reply:
        """Capture a call in a graph."""
        self.captured = Captured(self._own(order.call))
        return Reply(Word.DONE, 0, order.number)

    def replay(self, order: Replay) -> Reply:
        """Replay the captured call."""
        if self.captured is None:
            raise LaunchFailed("nothing was captured")
        self.captured.replay(is_aside=order.is_aside)
        return Reply(Word.DONE, 0, order.number)

    def time(self, order: Time) -> Reply:
        """Load an arm, capture calls, time them; what they wrote is left for the judge to check."""
        if order.load:
            self.graph = None
            self._open_only(range(len(self.job.calls)))
            self.arms.pop(order.arm, None)
            if before := self.kernels.pop(order.arm, None):
                torch.cuda.synchronize()
                before.unload()
            torch.cuda.empty_cache()
            self.arms[order.arm] = self._loaded(order.load, order.arm)
        if order.calls:
            self.graph, self.made = None, order.calls
            self._open_only(order.calls)
            closures = [self.arms[order.arm][number] for number in order.calls]
            with torch.inference_mode():
                self.graph = CallGraph(closures * order.repeats)
        if order.replays:
            self._replay(order.replays)
        return Reply(Word.DONE, 0, order.number)

    def _replay(self, replays: int) -> None:
        """Time what was captured; the next capture lets it go, which takes longer than to replay it."""
        if self.graph is None:
            raise LaunchFailed("nothing was captured")
        self.inputs.touch()
        seconds = self.graph.seconds(replays)
        with torch.inference_mode():
            for number, value in zip(self.made, self.graph.kept, strict=False):
                self._copy_out(number, value)
        times = torch.frombuffer(self.times, dtype=torch.float64)
        times[:replays] = torch.tensor(seconds, dtype=torch.float64)

    def _copy_out(self, number: int, value: Any) -> None:
        """Put what a baseline returned where others write: whoever is wrong alone is found by the difference."""
        case = self.job.cases[self.job.calls[number].case]
        values = value if isinstance(value, tuple) else (value,)
        for spec, found in zip(case.outputs, values, strict=False):
            if found is not None and tuple(found.shape) == spec.shape:
                self.tensor(number, spec).copy_(found)

    def _open_only(self, calls: Collection[int]) -> None:
        """Let device code read the inputs of these calls; where each has an allocation of its own, of no other."""
        if len(self.inputs.sizes) == len(self.job.calls):
            torch.cuda.synchronize()
            self.inputs.open_only(set(calls))

    def _loaded(self, arm: TimedArm, place: int) -> list[Callable[[], Any]]:
        """Return what makes each call of the job by one arm, loaded anew and warmed up."""
        closures: list[Callable[[], Any]] = []
        numbers = range(len(self.job.calls))
        if arm.kind == "plan":
            modules = self.kernels[place] = Modules(Path(arm.folder))
            # Calls follow each other: as in a model, they share their workspaces.
            spaces: dict[str, torch.Tensor] = {}
            closures += [self.prepare(arm.plan, modules, number, spaces).run for number in numbers]
        else:
            # Compiled once: that takes longer than a heat.
            function = self.baselines[arm] = self.baselines.get(arm) or _baseline(arm)
            for number in numbers:
                case = self.job.cases[self.job.calls[number].case]
                tensors = [self.tensor(number, spec) for spec in case.inputs]
                closures.append(partial(function, *tensors, *case.scalars.values()))
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(WARM_UP):
                for closure in closures:
                    closure()
        torch.cuda.synchronize()
        return closures


def _baseline(arm: TimedArm) -> Callable[..., Any]:
    """Return a baseline's function: shipped with the package, never a candidate's."""
    function = function_of(arm.source)
    if arm.kind == "eager":
        return function
    # Captured by us like every other arm: a mode that captures graphs of its own cannot be.
    mode = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}.get(arm.mode, arm.mode)
    return torch.compile(function, mode=mode, dynamic=False)


def serve(control: int, times: int, index: int) -> None:
    """Make a context, and carry out one job after the other until the judge hangs up."""
    channel = socket.socket(fileno=control)
    torch.cuda.set_device(index)
    torch.cuda.synchronize()
    stream = channel.makefile("rb")
    while launcher := _begun(channel, times):
        while not isinstance(order := read_message(stream, RUNNER_ORDER), Leave):
            if order is None:
                return
            channel.sendall(pack_reply(_answered(launcher, order)))
        launcher.close()
        channel.sendall(pack_reply(Reply(Word.DONE, 0, order.number)))


def _begun(channel: socket.socket, times: int) -> Launcher | None:
    """Take a job with its buffers; None once the judge has hung up."""
    first, buffers, _, _ = socket.recv_fds(channel, HEADER.size, MOST_BUFFERS)
    if not first:
        return None
    header = first + receive_exactly(channel, HEADER.size - len(first))
    job = parse(receive_exactly(channel, body_length(header)), RUNNER_ORDER)
    if not isinstance(job, DeviceJob):
        return None
    *inputs, outputs = buffers
    launcher = Launcher(job, inputs, outputs, times)
    for buffer in buffers:
        os.close(buffer)  # mapped
    channel.sendall(pack_reply(Reply(Word.READY, 0, len(job.calls))))
    return launcher


def _answered(launcher: Launcher, order: RunnerOrder) -> Reply:
    """Carry out an order, and return what came of it."""
    try:
        return _carried_out(launcher, order)
    except Exception as error:  # noqa: BLE001 - the worker's outermost frame
        # What torch adds to a CUDA error is advice for its debugging.
        words = str(error).partition("\n")[0] if isinstance(error, RuntimeError) else str(error)
        sys.stderr.write(f"{type(error).__name__}: {words}"[:4000] + "\n")
        sys.stderr.flush()
        code = NO_MEMORY if isinstance(error, torch.OutOfMemoryError) else 0
        return Reply(Word.FAILED, code, getattr(order, "first", 0))


def _carried_out(launcher: Launcher, order: RunnerOrder) -> Reply:
    match order:
        case Run():
            return launcher.run(order)
        case Time():
            return launcher.time(order)
        case Overlap():
            return launcher.overlap(order)
        case Capture():
            return launcher.capture(order)
        case Replay():
            return launcher.replay(order)
        case Close() | Collect():
            # Of a job for checks all inputs lie in one allocation.
            return Reply(Word.DONE, 0, order.number)
        case _:
            raise LaunchFailed(f"no launcher carries out {order.type!r}")

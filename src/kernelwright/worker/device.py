"""The GPU runner: launches plans on copies of the judge's buffers and times them in captured graphs.

1. Started fresh (a CUDA context does not survive a fork), with descriptors: control socket, input slab, output slab,
   times slab.
2. `Run` copies a call's inputs and poisoned outputs to the GPU, launches, waits, and copies the outputs back.
3. `Time` captures every arm over all calls of the job in one graph each, replays the arms in random order round by
   round, and leaves the seconds of each replay in the times slab. Only plans and trusted baselines run here.
"""

import ctypes
import mmap
import random
import socket
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernelwright.backends.eager import torch_dtype
from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.frames import Reply, Word, pack_reply, read_message
from kernelwright.core.messages import RUNNER_ORDER, Call, Collect, DeviceJob, Run, Time, TimedArm
from kernelwright.core.plan import LaunchPlan
from kernelwright.worker.launcher import LaunchFailed, Modules, PreparedCall

WARM_UP = 3


class Slab:
    """A memory file of the judge's, mapped here."""

    def __init__(self, descriptor: int, *, writable: bool) -> None:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self.memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=access)

    def storage(self, call: Call, spec: TensorSpec) -> torch.Tensor:
        """Return the whole storage of a tensor of a call, as elements on the CPU."""
        region = call.regions[spec.name]
        start, count = region.offset + region.start, spec.storage_elements
        if count == 0:
            return torch.empty(0, dtype=torch_dtype(spec.dtype))
        return torch.frombuffer(self.memory, dtype=torch_dtype(spec.dtype), count=count, offset=start)


def _strided(storage: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return the tensor inside its storage; offsets count from the storage's own start."""
    if spec.numel == 0:
        return torch.empty(spec.shape, dtype=storage.dtype, device=storage.device)
    return storage.as_strided(spec.shape, spec.element_strides, storage.storage_offset() + spec.offset)


class DeviceRunner:
    """One job on one GPU."""

    def __init__(self, job: DeviceJob, inputs: int, outputs: int, times: int) -> None:
        torch.cuda.set_device(job.index)
        torch.zeros(1, device="cuda")  # creates the context the driver calls need
        self.job = job
        self.slabs = {"inputs": Slab(inputs, writable=False), "outputs": Slab(outputs, writable=True)}
        self.times = Slab(times, writable=True)
        self.modules = Modules(Path(job.folder))

    def _case(self, call: Call) -> Case:
        return self.job.cases[call.case]

    def upload(self, call: Call) -> dict[str, torch.Tensor]:
        """Return the storages of a call's tensors on the GPU, outputs as poisoned as the judge left them."""
        case = self._case(call)
        return {
            spec.name: self.slabs[call.regions[spec.name].slab].storage(call, spec).to("cuda")
            for spec in (*case.inputs, *case.outputs)
        }

    def prepare(
        self, plan: LaunchPlan | None, modules: Modules, call: Call, storages: dict[str, torch.Tensor]
    ) -> PreparedCall:
        """Return a plan bound to buffers on the GPU."""
        case = self._case(call)
        if plan is None:
            raise LaunchFailed(f"there is no plan for {case.label}")
        specs = {spec.name: spec for spec in (*case.inputs, *case.outputs)}
        addresses = {
            name: storage.data_ptr() + specs[name].offset * storage.element_size()
            for name, storage in storages.items()
        }
        return PreparedCall(plan, case, modules, addresses)

    def download(self, call: Call, storages: dict[str, torch.Tensor]) -> None:
        """Copy the outputs of a call back into the judge's slab."""
        for spec in self._case(call).outputs:
            self.slabs["outputs"].storage(call, spec).copy_(storages[spec.name])

    def run(self, order: Run) -> Reply:
        """Execute calls one by one, each waited for, so that a failure is the failing call's own."""
        for index in range(order.first, order.first + order.count):
            call = self.job.calls[index]
            storages = self.upload(call)
            self.prepare(self.job.plans[call.case], self.modules, call, storages).run()
            torch.cuda.synchronize()
            self.download(call, storages)
        return Reply(Word.DONE, 0, order.number)

    def time(self, order: Time) -> Reply:
        """Time the arms and leave the outputs of the last plan's replay in the slab."""
        calls = [(call, self.upload(call)) for call in self.job.calls if call.case == order.case]
        arms = [self._captured(arm, calls, order.repeats) for arm in order.arms]
        rng = random.Random(order.seed)
        seconds = torch.frombuffer(self.times.memory, dtype=torch.float64)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for round_number in range(order.rounds):
            places = list(range(len(arms)))
            rng.shuffle(places)
            for place in places:
                torch.cuda.synchronize()
                start.record()
                arms[place].replay()
                end.record()
                end.synchronize()
                seconds[round_number * len(arms) + place] = start.elapsed_time(end) / 1e3
        for call, storages in calls:
            self.download(call, storages)
        return Reply(Word.DONE, 0, order.number)

    def _captured(
        self, arm: TimedArm, calls: list[tuple[Call, dict[str, torch.Tensor]]], repeats: int
    ) -> torch.cuda.CUDAGraph:
        """Return a graph of all calls by one arm, several times over."""
        if arm.kind == "plan":
            modules = Modules(Path(arm.folder))
            prepared = [self.prepare(arm.plan, modules, call, storages) for call, storages in calls]
            closures: list[Callable[[], Any]] = [call.run for call in prepared]
        else:
            function = _baseline(arm)
            closures = []
            for call, storages in calls:
                case = self._case(call)
                tensors = [_strided(storages[spec.name], spec) for spec in case.inputs]
                closures.append(partial(function, *tensors, *case.scalars.values()))
        with torch.inference_mode():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    for closure in closures:
                        closure()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = [closure() for _ in range(repeats) for closure in closures]
            for _ in range(WARM_UP):
                graph.replay()
        torch.cuda.synchronize()
        graph.kept = (closures, kept)  # what the graph refers to must outlive it
        return graph


def _baseline(arm: TimedArm) -> Callable[..., Any]:
    """Return a baseline's function: shipped with the package, never a candidate's."""
    module = types.ModuleType("baseline")
    sys.modules["baseline"] = module  # where dynamo looks up the globals of what it compiles
    exec(compile(arm.source, "baseline.py", "exec"), module.__dict__)
    function: Callable[..., Any] = module.kernel_fn
    if arm.kind == "eager":
        return function
    return torch.compile(function, mode=None if arm.mode == "default" else arm.mode, dynamic=False)


def serve(control: int, inputs: int, outputs: int, times: int) -> None:
    """Execute orders until the judge hangs up."""
    channel = socket.socket(fileno=control)
    stream = channel.makefile("rb")
    job = read_message(stream, RUNNER_ORDER)
    if not isinstance(job, DeviceJob):
        return
    runner = DeviceRunner(job, inputs, outputs, times)
    channel.sendall(pack_reply(Reply(Word.READY, 0, len(job.calls))))
    while (order := read_message(stream, RUNNER_ORDER)) is not None:
        try:
            if isinstance(order, Run):
                reply = runner.run(order)
            elif isinstance(order, Time):
                reply = runner.time(order)
            elif isinstance(order, Collect):
                reply = Reply(Word.DONE, 0, order.number)
            else:
                return
        except Exception as error:  # noqa: BLE001 - the worker's outermost frame
            sys.stderr.write(f"{type(error).__name__}: {error}"[:4000] + "\n")
            sys.stderr.flush()
            reply = Reply(Word.FAILED, 0, getattr(order, "first", 0))
        channel.sendall(pack_reply(reply))


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # dies with its parent
    serve(*(int(word) for word in sys.argv[1:5]))

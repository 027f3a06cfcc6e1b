"""`python -m kernelwright.worker.profiled FOLDER`: the steady state of one plan, for a profiler to look at.

1. It reads the order in the folder, loads the compiled kernels and fills buffers of exactly the case's layout.
2. It calls the plan a few times: what is loaded or allocated at first is over then.
3. Between start and stop of the profiler it calls it again, waiting after every call; nothing else runs there.

It is the trusted launcher of plans: no host code of a candidate exists here, and it is shut in like the one that times
them, as far as a profiler works on; what was reached it leaves in a file. It is started under the profiler, or
alone, and then torch's own profiler looks, or the kernels were compiled to record themselves and it hands over what
they wrote. It says nothing but what the profiler prints, and no verdict.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.backends._bare_launch import SCRATCH_ALIGNMENT, PlannedKernel
from kernelwright.backends._tensors import torch_dtype
from kernelwright.core.case import DType, TensorSpec
from kernelwright.core.messages.profiler import (
    ORDER,
    RECORDED_BLOCKS,
    SANDBOX,
    TRACE,
    Steady,
    Trace,
    Traced,
    record_file,
)
from kernelwright.worker.sandbox import shut_in_profiled

if TYPE_CHECKING:
    import torch

FLOATS = (DType.FP32, DType.FP16, DType.BF16, DType.FP64)
SEED = 20


def main(folder: Path) -> None:
    """Carry out the order of a folder."""
    order = Steady.model_validate_json((folder / ORDER).read_text())
    # Before anything of a candidate is read, and before torch is imported: threads it starts are shut in too.
    (folder / SANDBOX).write_text(shut_in_profiled(watched=order.tracer == "outside"))
    import torch

    torch.cuda.set_device(order.device)
    generator = torch.Generator(f"cuda:{order.device}").manual_seed(SEED)
    storages = [storage(spec, order, folder, generator) for spec in order.case.inputs]
    storages += [empty(spec, order.device) for spec in order.case.outputs]
    specs = (*order.case.inputs, *order.case.outputs)
    addresses = [
        one.data_ptr() + spec.offset * spec.dtype.itemsize for one, spec in zip(storages, specs, strict=True)
    ]
    binaries = [
        ((folder / one.binary).read_bytes(), json.loads((folder / one.facts).read_text()))
        for one in order.kernels
    ]
    launcher = RecordingKernel if order.tracer == "inside" else PlannedKernel
    kernel = launcher(
        order.case.model_dump(mode="json"), order.plan.model_dump(mode="json"), binaries, order.device
    )

    def call() -> None:
        kernel(*addresses)
        torch.cuda.synchronize()

    for _ in range(order.warm_up):
        call()
    if isinstance(kernel, RecordingKernel):
        for place, blocks in enumerate(kernel.recorded()):
            blocks.numpy().tofile(folder / record_file(place))
        return
    if order.tracer == "torch":
        (folder / TRACE).write_text(traced(call, order.calls).model_dump_json())
        return
    cudart = torch.cuda.cudart()
    cudart.cudaProfilerStart()
    for _ in range(order.calls):
        call()
    cudart.cudaProfilerStop()


class RecordingKernel(PlannedKernel):
    """A plan whose kernels write down their own steps: their records outlive the launch."""

    def _laid_out(self) -> Any:
        import torch

        launches = super()._laid_out()
        made = [
            facts
            for facts, launch in zip(self.facts, self.plan["launches"], strict=True)
            if all(launch["grid"])
        ]
        self.buffers: list[tuple[torch.Tensor, int]] = []
        for launch, facts in zip(launches, made, strict=True):
            if not facts["profile_scratch_size"]:
                raise ValueError(f"{facts['entry']} was built without records")
            # The compiler appends the pointer to the records last.
            value, nbytes = launch.scratch.pop()
            room = torch.zeros(nbytes + SCRATCH_ALIGNMENT, dtype=torch.uint8, device=self.device)
            start = -room.data_ptr() % SCRATCH_ALIGNMENT
            value.value = room.data_ptr() + start
            self.buffers.append((room[start : start + nbytes], facts["profile_scratch_size"]))
        return launches

    def recorded(self) -> "list[torch.Tensor]":
        """Return, per launch, the records of a few blocks of its last call."""
        found = []
        for room, size in self.buffers:
            blocks = room.view(-1, size)
            step = max(1, len(blocks) // RECORDED_BLOCKS)
            found.append(blocks[::step][:RECORDED_BLOCKS].cpu())
        return found


def empty(spec: TensorSpec, device: int) -> "torch.Tensor":
    """Return storage for a tensor."""
    import torch

    kind = torch_dtype(spec.dtype)
    return torch.empty(max(1, spec.storage_elements), dtype=kind, device=f"cuda:{device}")


def storage(spec: TensorSpec, order: Steady, folder: Path, generator: "torch.Generator") -> "torch.Tensor":
    """Return the storage of an input: from its file, or standard normal."""
    import torch

    made = empty(spec, order.device)
    if spec.name in order.inputs:
        path = folder / order.inputs[spec.name]
        read = torch.from_file(str(path), size=made.numel(), dtype=made.dtype)
        return made.copy_(read)
    if spec.dtype not in FLOATS:
        raise ValueError(f"input {spec.name!r} holds no floats and has no file: it cannot be drawn here")
    return made.normal_(generator=generator)


def traced(call: Callable[[], None], calls: int) -> Trace:
    """Return the kernels of the calls, as torch's own profiler sees them."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            call()
    on_device = [
        event
        for event in found.events() or ()
        if event.device_type == DeviceType.CUDA and not event.name.startswith(("Memset", "Memcpy"))
    ]
    on_device.sort(key=lambda event: event.time_range.start)
    return Trace(
        tool=f"torch.profiler {torch.__version__}",
        kernels=tuple(Traced(name=event.name, time_us=event.time_range.elapsed_us()) for event in on_device),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

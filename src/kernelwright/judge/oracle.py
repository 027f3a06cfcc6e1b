"""What the judge asks the reference process: the exact answer, the framework's answer and the error scale of a call."""

import os
from functools import cached_property
from typing import NamedTuple

import torch

from kernelwright.core.case import Case, DType, TensorSpec
from kernelwright.core.device import DeviceKind
from kernelwright.core.errors import ServiceDied
from kernelwright.core.messages.reference import (
    REFERENCE_DONE,
    ReferenceDone,
    ReferenceRequest,
    result_offsets,
)
from kernelwright.core.messages.runner import Call
from kernelwright.core.problem import Problem
from kernelwright.judge.arena import Arena, Slab
from kernelwright.judge.children import Service
from kernelwright.judge.error_budget import Depth, Verdict
from kernelwright.judge.outputs import Measured, check_output
from kernelwright.ops._draw import torch_dtype


class _Parts(NamedTuple):
    """What the reference says of one output."""

    exact: torch.Tensor
    """In float64, from the very inputs the candidate gets."""
    framework: torch.Tensor
    """In the case's own precision."""
    scale: torch.Tensor
    """What an element's error is measured against."""


class Answer(_Parts):
    """The reference's answer for one output, and what it allows, which is measured once for all who gave theirs."""

    @cached_property
    def measured(self) -> Measured:
        """Return what the answer allows."""
        return Measured(*self)

    def judged(self, values: torch.Tensor, depth: Depth | None) -> Verdict:
        """Judge an output against it."""
        return check_output(values, *self, depth, self.measured)


def ask(service: Service, problem: Problem, case: Case, call: Call, arena: Arena) -> list[Answer]:
    """Return one answer per output of a call."""
    specs: list[TensorSpec] = []
    for spec in case.outputs:
        dense = spec.model_copy(update={"strides": None, "offset": 0})
        wide = dense.model_copy(update={"dtype": DType.FP64})
        specs += [wide, dense, wide]
    offsets = result_offsets(tuple(specs))
    on_cpu = problem.device.kind is DeviceKind.CPU
    slab = Slab("results", offsets[-1]) if on_cpu else _device_slab(offsets[-1], problem.device.index)
    inputs = arena.lent(call)
    request = ReferenceRequest(
        op=problem.op,
        reference=problem.reference,
        case=case,
        regions=inputs.regions,
        device="cpu" if on_cpu else f"cuda:{problem.device.index}",
        results=tuple(specs),
        input_bytes=inputs.nbytes,
        result_bytes=slab.nbytes,
    )
    if not on_cpu:
        torch.cuda.synchronize()  # what this process wrote into the inputs must be there
    try:
        done = _asked(service, request, [inputs.descriptor, slab.descriptor])
        if done.error:
            raise ServiceDied("reference", f"{case.label}: {done.error}")
        tensors = [
            _read(slab, spec, offset, on_cpu=on_cpu) for spec, offset in zip(specs, offsets, strict=False)
        ]
    finally:
        os.close(inputs.descriptor)
        slab.close()
    return [Answer(*tensors[place : place + 3]) for place in range(0, len(tensors), 3)]


def _asked(service: Service, request: ReferenceRequest, descriptors: list[int]) -> ReferenceDone:
    """Ask, and ask a fresh process once more if the framework took the first one down with it."""
    try:
        return service.ask(request, descriptors, REFERENCE_DONE)
    except ServiceDied:
        service.restart()
        return service.ask(request, descriptors, REFERENCE_DONE)


def _device_slab(nbytes: int, index: int) -> Slab:
    from kernelwright.judge.device_arena import DeviceSlab

    return DeviceSlab([nbytes], index)  # type: ignore[return-value]  # the same methods over other memory


def _read(slab: Slab, spec: TensorSpec, offset: int, *, on_cpu: bool) -> torch.Tensor:
    """Return a result: nobody else has its memory any more; on a GPU that goes with the slab, so it is copied."""
    kind = torch_dtype(spec.dtype)
    if not spec.numel:
        return torch.empty(spec.shape, dtype=kind)
    if on_cpu:
        return torch.frombuffer(slab.memory, dtype=kind, count=spec.numel, offset=offset).view(spec.shape)
    return slab.bytes_view(offset, spec.nbytes).clone().view(kind).reshape(spec.shape)

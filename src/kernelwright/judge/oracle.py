"""What the judge asks the reference process: the exact answer, the framework's answer and the error scale of a call."""

import os
from typing import NamedTuple

import torch

from kernelwright.core.case import Case, DType, TensorSpec
from kernelwright.core.device import DeviceKind
from kernelwright.core.errors import ServiceDied
from kernelwright.core.messages import REFERENCE_DONE, Call, ReferenceRequest
from kernelwright.core.problem import Problem
from kernelwright.judge.arena import Arena, Slab
from kernelwright.judge.children import Service
from kernelwright.ops._draw import torch_dtype


class Answer(NamedTuple):
    """The reference's answer for one output."""

    exact: torch.Tensor
    """In float64, from the very inputs the candidate gets."""
    framework: torch.Tensor
    """In the case's own precision."""
    scale: torch.Tensor
    """What an element's error is measured against."""


def ask(service: Service, problem: Problem, case: Case, call: Call, arena: Arena) -> list[Answer]:
    """Return one answer per output of a call."""
    specs: list[TensorSpec] = []
    for spec in case.outputs:
        dense = spec.model_copy(update={"strides": None, "offset": 0})
        wide = dense.model_copy(update={"dtype": DType.FP64})
        specs += [wide, dense, wide]
    slab = Slab("results", sum(spec.nbytes for spec in specs))
    inputs = arena.inputs.read_only_descriptor()
    request = ReferenceRequest(
        op=problem.op,
        reference=problem.reference,
        case=case,
        regions=call.regions,
        device="cpu" if problem.device.kind is DeviceKind.CPU else f"cuda:{problem.device.index}",
        results=tuple(specs),
    )
    try:
        done = service.ask(request, [inputs, slab.descriptor], REFERENCE_DONE)
        if done.error:
            raise ServiceDied("reference", f"{case.label}: {done.error}")
        tensors, offset = [], 0
        for spec in specs:
            tensors.append(_read(slab, spec, offset))
            offset += spec.nbytes
    finally:
        os.close(inputs)
        slab.close()
    return [Answer(*tensors[place : place + 3]) for place in range(0, len(tensors), 3)]


def _read(slab: Slab, spec: TensorSpec, offset: int) -> torch.Tensor:
    if spec.numel == 0:
        return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype))
    raw = bytearray(os.pread(slab.descriptor, spec.nbytes, offset))
    return torch.frombuffer(raw, dtype=torch_dtype(spec.dtype)).reshape(spec.shape)

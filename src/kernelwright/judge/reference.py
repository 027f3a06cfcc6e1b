"""The reference process: the op's (or the user's) own code, in float64 and in the framework's precision.

It shares no memory with any candidate: it is handed the inputs and a result slab of its own, and is started by the
judge, which alone knows seeds and tolerances.
"""

import importlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from kernelwright.backends._cuda_memory import SharedMemory, map_shared
from kernelwright.core import plugins
from kernelwright.core.case import Compute, TensorSpec
from kernelwright.core.environment import close_off
from kernelwright.core.frames import HEADER, body_length, pack, parse, receive_exactly
from kernelwright.core.messages.judge import Describe, Described
from kernelwright.core.messages.reference import (
    REFERENCE_ORDER,
    ReferenceDone,
    ReferenceRequest,
    result_offsets,
)
from kernelwright.judge.user_module import PREFIX, UserModule
from kernelwright.ops._draw import torch_dtype

Tensors = Mapping[str, torch.Tensor]
Reference = Callable[[Tensors, Mapping[str, bool | int | float]], tuple[torch.Tensor, ...]]
USER_FAULTS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(OSError, RuntimeError, SyntaxError, TypeError, ValueError),
)
"""What a user's own file may raise: it is the user's to read, and the reference lives on."""
ALIGNMENT = 16
MOST_AT_ONCE = 1 << 30


class _Slabs:
    """The judge's inputs and its room for results: files on a CPU, memory of the GPU on a GPU."""

    def __init__(self, request: ReferenceRequest, inputs: int, results: int) -> None:
        self.inputs, self.results = inputs, results
        self.mapped: tuple[SharedMemory, ...] = ()
        if request.device != "cpu":
            index = torch.device(request.device).index or 0
            self.mapped = (
                map_shared([inputs], [request.input_bytes], index, writable=False),
                map_shared([results], [request.result_bytes], index),
            )

    def __enter__(self) -> "_Slabs":
        return self

    def __exit__(self, *_: object) -> None:
        if self.mapped:
            torch.cuda.synchronize()
        for memory in self.mapped:
            memory.close()

    def read(self, spec: TensorSpec, offset: int) -> torch.Tensor:
        """Return a private copy of a tensor: the framework may not see memory that others can change."""
        kind, nbytes = torch_dtype(spec.dtype), spec.storage_elements * spec.dtype.itemsize
        if spec.numel == 0:
            return torch.empty(spec.shape, dtype=kind)
        if self.mapped:
            raw = self.mapped[0].bytes_view(offset, nbytes).clone().view(kind)
        else:
            raw = torch.frombuffer(read_at(self.inputs, nbytes, offset), dtype=kind)
        tensor = raw.as_strided(spec.shape, spec.element_strides, spec.offset)
        # torch's attention reads 16 bytes at a time from wherever a tensor or a row starts, and dies where it may not.
        if self.mapped and (tensor.data_ptr() % ALIGNMENT or not tensor.is_contiguous()):
            return tensor.clone(memory_format=torch.contiguous_format)
        return tensor

    def write(self, flat: torch.Tensor, offset: int) -> None:
        """Put a result where the judge looks for it."""
        if not flat.numel():
            return
        raw = flat.view(torch.uint8)
        if self.mapped:
            self.mapped[1].bytes_view(offset, raw.numel()).copy_(raw)
        else:
            write_at(self.results, raw.numpy(), offset)


def read_at(file: int, nbytes: int, offset: int) -> bytearray:
    """Return so many bytes of a file: one call moves 2 GiB at most."""
    found = bytearray(nbytes)
    view, done = memoryview(found), 0
    while done < nbytes:
        part = os.preadv(file, [view[done : done + MOST_AT_ONCE]], offset + done)
        if not part:
            raise EOFError(f"the file of inputs ends {nbytes - done} bytes too early")
        done += part
    return found


def write_at(file: int, data: Any, offset: int) -> None:
    """Write all bytes of a buffer into a file, likewise."""
    view, done = memoryview(data).cast("B"), 0
    while done < len(view):
        done += os.pwrite(file, view[done : done + MOST_AT_ONCE], offset + done)


@dataclass
class _Known:
    """What was loaded before: looking an op up reads the metadata of every installed package, 7 ms a call."""

    ops: dict[str, ModuleType] = field(default_factory=dict)
    files: dict[str, UserModule] = field(default_factory=dict)

    def op(self, name: str) -> ModuleType:
        if name not in self.ops:
            self.ops[name] = plugins.load("ops", name)
        return self.ops[name]

    def file(self, reference: str) -> UserModule:
        if reference not in self.files:
            self.files[reference] = UserModule(reference)
        return self.files[reference]


def _reference(request: ReferenceRequest, known: _Known) -> Reference:
    """Return the op's reference, the module of the user's file, or the user's callable by `module:qualname`."""
    if request.reference is None:
        return known.op(request.op).reference
    if request.reference.startswith(PREFIX):
        found = known.file(request.reference)
        return lambda inputs, _: found.answer(request.case, inputs)
    module, _, qualname = request.reference.partition(":")
    function = importlib.import_module(module)
    for part in qualname.split("."):
        function = getattr(function, part)
    return function  # type: ignore[return-value]


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _rounded_to_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a matrix unit makes of fp32 factors: ten bits behind the point, to nearest."""
    if tensor.dtype is not torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def _framework(request: ReferenceRequest, reference: Reference, inputs: Tensors) -> tuple[torch.Tensor, ...]:
    """Return the framework's own answer in the declared compute class; a CPU has no tf32, so factors are rounded."""
    is_tf32 = request.case.compute is Compute.TF32_OK
    torch.backends.cuda.matmul.allow_tf32 = is_tf32
    if is_tf32 and request.device == "cpu":
        inputs = {name: _rounded_to_tf32(tensor) for name, tensor in inputs.items()}
    return reference(inputs, request.case.scalars)


def _answer(request: ReferenceRequest, inputs: Tensors, known: _Known) -> list[torch.Tensor]:
    """Return, per output, the float64 answer, the framework's answer and the error scale."""
    reference, scalars = _reference(request, known), request.case.scalars
    inputs = {name: tensor.to(request.device) for name, tensor in inputs.items()}
    wide = {name: _widened(tensor) for name, tensor in inputs.items()}
    exact, framework = reference(wide, scalars), _framework(request, reference, inputs)
    op = known.op(request.op)
    scale = (
        op.measured_scale(lambda shifted: reference(shifted, scalars), wide, exact)
        if hasattr(op, "measured_scale")
        else op.error_scale(wide, scalars)
    )
    return [tensor for group in zip(exact, framework, scale, strict=True) for tensor in group]


def _describe(request: Describe, known: _Known) -> Described:
    try:
        return known.file(request.reference).describe()
    except USER_FAULTS as error:
        return Described(error=f"{type(error).__name__}: {error}")


def _serve_one(request: ReferenceRequest, known: _Known, inputs: int, results: int) -> ReferenceDone:
    with _Slabs(request, inputs, results) as slabs:
        tensors = {}
        for spec in request.case.inputs:
            region = request.regions[spec.name]
            tensors[spec.name] = slabs.read(spec, region.offset + region.start)
        try:
            answers = _answer(request, tensors, known)
        except USER_FAULTS as error:
            return ReferenceDone(error=f"{type(error).__name__}: {error}")
        offsets = result_offsets(request.results)
        for spec, answer, offset in zip(request.results, answers, offsets, strict=False):
            slabs.write(answer.to(torch_dtype(spec.dtype)).contiguous().reshape(-1), offset)
    return ReferenceDone()


def main(descriptor: int) -> None:
    """Serve requests until the judge hangs up."""
    close_off()
    channel = socket.socket(fileno=descriptor)
    known = _Known()
    while True:
        first, descriptors, _, _ = socket.recv_fds(channel, HEADER.size, 2)
        if not first:
            return
        header = first + receive_exactly(channel, HEADER.size - len(first))
        request = parse(receive_exactly(channel, body_length(header)), REFERENCE_ORDER)
        done: ReferenceDone | Described
        try:
            if isinstance(request, Describe):
                done = _describe(request, known)
            else:
                done = _serve_one(request, known, *descriptors)
        finally:
            for each in descriptors:
                os.close(each)
        channel.sendall(pack(done))


if __name__ == "__main__":
    main(int(sys.argv[1]))

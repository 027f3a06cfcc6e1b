"""The reference process: the op's (or the user's) own code, in float64 and in the framework's precision.

It shares no memory with any candidate: it is handed the inputs and a result slab of its own, and is started by the
judge, which alone knows seeds and tolerances.
"""

import importlib
import os
import socket
import sys
from collections.abc import Callable, Mapping

import torch

from kernelwright.core import plugins
from kernelwright.core.case import TensorSpec
from kernelwright.core.frames import HEADER, body_length, pack, parse
from kernelwright.core.messages import REFERENCE_REQUEST, ReferenceDone, ReferenceRequest
from kernelwright.ops._draw import torch_dtype

Tensors = Mapping[str, torch.Tensor]
Reference = Callable[[Tensors, Mapping[str, bool | int | float]], tuple[torch.Tensor, ...]]


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = channel.recv(count - len(data))
        if not part:
            raise SystemExit("reference: the judge hung up inside a frame")
        data += part
    return data


def _tensor(descriptor: int, spec: TensorSpec, offset: int) -> torch.Tensor:
    """Return a private copy of a tensor in the slab: the framework may not see memory that others can change."""
    kind = torch_dtype(spec.dtype)
    if spec.numel == 0:
        return torch.empty(spec.shape, dtype=kind)
    raw = bytearray(os.pread(descriptor, spec.storage_elements * spec.dtype.itemsize, offset))
    return torch.frombuffer(raw, dtype=kind).as_strided(spec.shape, spec.element_strides, spec.offset)


def _reference(request: ReferenceRequest) -> Reference:
    """Return the op's reference, or the user's callable by `module:qualname`."""
    if request.reference is None:
        return plugins.load("ops", request.op).reference
    module, _, qualname = request.reference.partition(":")
    found = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found  # type: ignore[return-value]


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _answer(request: ReferenceRequest, inputs: Tensors) -> list[torch.Tensor]:
    """Return, per output, the float64 answer, the framework's answer and the error scale."""
    reference, scalars = _reference(request), request.case.scalars
    inputs = {name: tensor.to(request.device) for name, tensor in inputs.items()}
    wide = {name: _widened(tensor) for name, tensor in inputs.items()}
    exact, framework = reference(wide, scalars), reference(inputs, scalars)
    scale = plugins.load("ops", request.op).error_scale(wide, scalars)
    return [tensor for group in zip(exact, framework, scale, strict=True) for tensor in group]


def _serve_one(request: ReferenceRequest, inputs: int, results: int) -> ReferenceDone:
    tensors = {}
    for spec in request.case.inputs:
        region = request.regions[spec.name]
        tensors[spec.name] = _tensor(inputs, spec, region.offset + region.start)
    try:
        answers = _answer(request, tensors)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        return ReferenceDone(error=f"{type(error).__name__}: {error}")
    offset = 0
    for spec, answer in zip(request.results, answers, strict=True):
        flat = answer.to(torch_dtype(spec.dtype)).cpu().contiguous().reshape(-1)
        if flat.numel():
            os.pwrite(results, flat.view(torch.uint8).numpy(), offset)
        offset += spec.nbytes
    return ReferenceDone()


def main(descriptor: int) -> None:
    """Serve requests until the judge hangs up."""
    channel = socket.socket(fileno=descriptor)
    while True:
        first, descriptors, _, _ = socket.recv_fds(channel, HEADER.size, 2)
        if not first:
            return
        header = first + _exactly(channel, HEADER.size - len(first))
        request = parse(_exactly(channel, body_length(header)), REFERENCE_REQUEST)
        try:
            done = _serve_one(request, *descriptors)
        finally:
            for each in descriptors:
                os.close(each)
        channel.sendall(pack(done))


if __name__ == "__main__":
    main(int(sys.argv[1]))

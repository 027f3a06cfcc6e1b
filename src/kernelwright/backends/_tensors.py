"""Addresses and tensors: how a backend of Python sees the buffers a runner was lent, on the CPU or on a GPU."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.core.case import DType, TensorSpec

TORCH_NAMES = {
    DType.FP32: "float32",
    DType.FP16: "float16",
    DType.BF16: "bfloat16",
    DType.FP64: "float64",
    DType.INT64: "int64",
    DType.INT32: "int32",
    DType.BOOL: "bool",
}


def torch_dtype(dtype: DType) -> Any:
    """Return torch's name of an element type. `Any`: torch is imported lazily."""
    import torch

    return getattr(torch, TORCH_NAMES[dtype])


class DeviceBytes:
    """Memory of a GPU as the array interface describes it: bytes, because that interface has no bf16."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def tensor_at(spec: TensorSpec, address: int, device: str = "cpu") -> Any:
    """Return a torch view of the tensor whose first element lies at `address` in the memory of `device`."""
    return tensors_at((spec,), {spec.name: address}, device)[spec.name]


def tensors_at(
    specs: Sequence[TensorSpec], addresses: Mapping[str, int], device: str = "cpu"
) -> dict[str, Any]:
    """Return torch views of tensors by name; those that start at one address share one storage, as aliases do."""
    import torch

    lengths: dict[int, int] = {}
    for spec in specs:
        nbytes = (spec.storage_elements - spec.offset) * spec.dtype.itemsize if spec.numel else 0
        lengths[addresses[spec.name]] = max(nbytes, lengths.get(addresses[spec.name], 0))
    storages = {address: _bytes_at(address, nbytes, device) for address, nbytes in lengths.items() if nbytes}
    made = {}
    for spec in specs:
        kind = torch_dtype(spec.dtype)
        if spec.numel:
            needed = (spec.storage_elements - spec.offset) * spec.dtype.itemsize
            flat = storages[addresses[spec.name]][:needed].view(kind)
            made[spec.name] = flat.as_strided(spec.shape, spec.element_strides)
        else:
            made[spec.name] = torch.empty(spec.shape, dtype=kind, device=device)
    return made


def _bytes_at(address: int, nbytes: int, device: str) -> Any:
    """Return memory as a tensor of bytes."""
    import torch

    if device == "cpu":
        return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)
    return torch.as_tensor(DeviceBytes(address, nbytes), device=device)

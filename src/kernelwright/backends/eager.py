"""PyTorch's eager mode: the baseline everybody knows, a candidate of a trusted origin."""

import ctypes
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case, DType, TensorSpec
from kernelwright.core.ports import Availability, BuildResult
from kernelwright.core.verdict import Status

SUMMARY = "PyTorch eager: the baseline"
EXTENSION = ".py"
TIER = "B"
NOTES = "A file with `kernel_fn(inputs..., scalars...)` that returns the outputs. Only for baselines."
TORCH_NAMES = {
    DType.FP32: "float32",
    DType.FP16: "float16",
    DType.BF16: "bfloat16",
    DType.FP64: "float64",
    DType.INT64: "int64",
    DType.INT32: "int32",
    DType.BOOL: "bool",
}


def available() -> Availability:
    """Tell whether torch is installed, without importing it."""
    if find_spec("torch") is None:
        return Availability(False, "torch is not installed", "pip install torch")
    return Availability(True, "torch")


def fingerprint() -> str:
    """Return what decides the behaviour besides the source."""
    from importlib.metadata import version

    return f"torch {version('torch')}"


def check(source: str) -> str | None:
    """Return why the source is refused, or None."""
    return None if "def kernel_fn(" in source else "no `kernel_fn` of its own"


def build(source: str, values: Mapping[str, ParamValue], folder: Path) -> BuildResult:
    """Write the source as the artefact: there is nothing to compile and nothing to choose."""
    if values:
        return BuildResult(status=Status.BUILD_FAILED, log=f"eager has no parameters, given {sorted(values)}")
    (folder / "kernel.py").write_text(source)
    return BuildResult(status=Status.ACCEPTED, artefact="kernel.py")


def torch_dtype(dtype: DType) -> Any:
    """Return torch's name of an element type. `Any`: torch is imported lazily."""
    import torch

    return getattr(torch, TORCH_NAMES[dtype])


def tensor_at(spec: TensorSpec, address: int) -> Any:
    """Return a torch view of the tensor whose first element lies at `address`."""
    import torch

    kind = torch_dtype(spec.dtype)
    if spec.numel == 0:
        return torch.empty(spec.shape, dtype=kind)
    elements = spec.storage_elements - spec.offset
    memory = (ctypes.c_char * (elements * spec.dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=kind).as_strided(spec.shape, spec.element_strides)


def bind(
    artefact: Path, cases: Sequence[Case], calls: Sequence[tuple[int, Mapping[str, int]]]
) -> list[Callable[[], Any]]:
    """Return one closure per call, each returning the outputs as tensors."""
    module = types.ModuleType("kernel")
    exec(compile(artefact.read_text(), "kernel.py", "exec"), module.__dict__)
    function = module.kernel_fn

    def closure(case: Case, addresses: Mapping[str, int]) -> Callable[[], Any]:
        tensors = [tensor_at(spec, addresses[spec.name]) for spec in case.inputs]
        arguments = (*tensors, *case.scalars.values())
        return lambda: function(*arguments)

    return [closure(cases[index], addresses) for index, addresses in calls]

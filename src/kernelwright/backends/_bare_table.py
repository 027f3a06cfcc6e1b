"""Drop-in kernels without the package: which kernel serves a call, whether it is what was certified, and where.

This file lies beside drop-in modules, with the standard library and torch alone. What the manifest names is hashed
before it is loaded, and nothing runs on another device than it was certified on.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Relative: the two files move together.
from ._bare_launch import KernelRefused, NativeKernel, PlannedKernel, strides_of

FORMAT = 2
"""Of the manifest beside it."""
DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
    "int64": "int64",
    "int32": "int32",
    "bool": "bool",
}
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp64": 8, "int64": 8, "int32": 4, "bool": 1}
ALIGNMENT = 16
"""Bytes: the widest access of a thread; a kernel may count on where a tensor starts modulo this."""


class Expected:
    """What a tensor must be: shape, type, device, strides, and where it starts."""

    def __init__(
        self, shape: Sequence[int], strides: Sequence[int], dtype: Any, device: Any, behind: int | None = 0
    ) -> None:
        """`dtype` and `device` are torch's; `behind`: how far behind an aligned address it starts, None if anywhere."""
        self.shape, self.strides, self.dtype, self.device = tuple(shape), tuple(strides), dtype, device
        self.behind = (behind or 0) % ALIGNMENT
        # The stride of an axis of one element is nobody's business.
        self.counted = [axis for axis, extent in enumerate(self.shape) if extent > 1]
        self.is_empty = 0 in self.shape
        self.is_anywhere = behind is None or self.is_empty
        dense = strides_of({"shape": self.shape, "strides": None})
        self.is_dense = all(self.strides[axis] == dense[axis] for axis in self.counted)

    def fits(self, tensor: Any) -> bool:
        """Tell whether a tensor is what was certified, and where."""
        return (
            tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.device == self.device
            # Five times as quick as asking for the strides.
            and (tensor.is_contiguous() if self.is_dense else self.steps_alike(tensor))
            and (tensor.data_ptr() % ALIGNMENT == self.behind or self.is_anywhere)
        )

    def steps_alike(self, tensor: Any) -> bool:
        """Tell whether a tensor of the right shape has the right strides."""
        strides = tensor.stride()
        return self.is_empty or all(strides[axis] == self.strides[axis] for axis in self.counted)

    def refusal(self, tensor: Any) -> str:
        """Return what a tensor that does not fit is not: shape, dtype, device, stride or alignment."""
        if tensor.shape != self.shape:
            return "shape"
        if tensor.dtype is not self.dtype:
            return "dtype"
        if tensor.device != self.device:
            return "device"
        return "alignment" if self.steps_alike(tensor) else "stride"


def refused_gradient(tensors: Sequence[Any]) -> bool:
    """Tell whether a gradient is asked for: these kernels have none."""
    import torch

    return bool(torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))


def whole_file(path: Path, expected_hash: str) -> bytes:
    """Return a file's content, refusing it if it is not what was certified."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise KernelRefused(f"{path} cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != expected_hash:
        raise KernelRefused(f"{path} is not the file that was certified: its hash is another one")
    return content


def processor_name() -> str:
    """Return the name of this machine's processor, as the kernel of the operating system gives it."""
    info: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        key, _, value = line.partition(":")
        info[key.strip()] = value.strip()
    if "model name" in info:
        return info["model name"]
    if "CPU part" in info:
        return f"ARM implementer {info.get('CPU implementer', '?')} part {info['CPU part']}"
    return platform.processor() or platform.machine()


def other_device(certified: Mapping[str, Any] | None, index: int | None) -> str:
    """Return what is wrong with running here what was certified there, in words; empty if nothing is."""
    if certified is None:
        return ""
    if certified["kind"] == "cpu":
        here, arch = processor_name(), platform.machine()
    else:
        import torch

        if certified["kind"] != "cuda" or not torch.cuda.is_available():
            return f"certified on {certified['name']}, and there is no such GPU here"
        here = torch.cuda.get_device_name(index or 0)
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability(index or 0))
    if (here, arch) == (certified["name"], certified["arch"]):
        return ""
    return f"certified on {certified['name']} ({certified['arch']}), this is {here} ({arch})"


class Kernels:
    """The kernels of one drop-in module."""

    def __init__(self, folder: Path, module: str) -> None:
        self.folder, self.module = folder, module
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise KernelRefused(
                f"{folder}: the manifest has format {manifest['format']}, this module reads {FORMAT}"
            )
        self.by_sizes: dict[Any, list[Mapping[str, Any]]] = {}
        for entry in manifest["entries"]:
            specs = [(tuple(spec["shape"]), _kind(spec)) for spec in entry["case"]["inputs"]]
            key = (tuple(specs), tuple(entry["case"]["scalars"].values()))
            if entry["module"] == module:
                proof = entry["certificate"]
                if (proof["status"], proof["profile"]) != ("accepted", "ship"):
                    words = f"{proof['status']} under {proof['profile']}"
                    raise KernelRefused(f"{folder}: a kernel of {module} is {words}, not accepted under ship")
                self.by_sizes.setdefault(key, []).append(entry)
        self.loaded: dict[Any, tuple[Callable[..., int], list[Expected]]] = {}

    def __call__(
        self, inputs: Sequence[Any], scalars: Sequence[Any], reference: Callable[..., Any] | None
    ) -> Any:
        """Return the answer of the kernel that serves these inputs, of `reference` if none does."""
        sizes = tuple((one.shape, one.dtype) for one in inputs)
        entries = self.by_sizes.get((sizes, tuple(scalars)), ())
        reason = "another layout or alignment than certified for" if entries else "no kernel for"
        if refused_gradient(inputs):
            entries, reason = (), "no gradient for"
        for entry in entries:
            kernel, wanted = self._ready(entry, inputs[0].device)
            if all(expected.fits(one) for expected, one in zip(wanted, inputs, strict=True)):
                outputs = [_empty(spec, inputs[0].device) for spec in entry["case"]["outputs"]]
                if kernel(*(one.data_ptr() for one in (*inputs, *outputs))) == 0:
                    return outputs[0] if len(outputs) == 1 else tuple(outputs)
        if reference is not None:
            return reference(*inputs, *scalars)
        told = ", ".join(
            f"{'x'.join(map(str, shape)) or 'scalar'} {str(kind).removeprefix('torch.')}"
            for shape, kind in sizes
        )
        raise KernelRefused(
            f"{self.module}: {reason} {told} with {tuple(scalars)}; pass reference= to run those"
        )

    def _ready(self, entry: Mapping[str, Any], device: Any) -> tuple[Callable[..., int], list[Expected]]:
        """Return a kernel on a device, loaded once, and what its inputs must be."""
        key = (id(entry), device)
        if key not in self.loaded:
            kind = "cpu" if entry["plan"] is None else "cuda"
            if device.type != kind:
                raise KernelRefused(f"{self.module}: this kernel is for {kind}, the inputs are on {device}")
            if problem := other_device(entry["device"], device.index):
                raise KernelRefused(f"{self.module}: {problem}")
            wanted = []
            for spec in entry["case"]["inputs"]:
                behind = spec["offset"] * ITEM_BYTES[spec["dtype"]]
                wanted.append(Expected(spec["shape"], strides_of(spec), _kind(spec), device, behind))
            self.loaded[key] = (self._opened(entry, device), wanted)
        return self.loaded[key]

    def _opened(self, entry: Mapping[str, Any], device: Any) -> Callable[..., int]:
        if entry["plan"] is None:
            library = self.folder / entry["library"]["name"]
            return NativeKernel(
                whole_file(library, entry["library"]["hash"]), entry["case"], entry["library"]["name"]
            )
        units = {}
        for unit in entry["units"]:
            binary, facts = (
                whole_file(self.folder / unit[part]["name"], unit[part]["hash"])
                for part in ("binary", "facts")
            )
            units[unit["key"]] = (binary, json.loads(facts))
        kernels = [units[key] for key in entry["launched"]]
        return PlannedKernel(entry["case"], entry["plan"], kernels, device.index or 0)


def _kind(spec: Mapping[str, Any]) -> Any:
    """Return a tensor's type as torch has it."""
    import torch

    return getattr(torch, DTYPES[spec["dtype"]])


def _empty(spec: Mapping[str, Any], device: Any) -> Any:
    import torch

    return torch.empty_strided(spec["shape"], strides_of(spec), dtype=_kind(spec), device=device)

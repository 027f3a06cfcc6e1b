"""The door for native code in a Python file: a compiled C++ source as a function of tensors and numbers."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelwright.backends._tensors import TORCH_NAMES
from kernelwright.core import plugins
from kernelwright.core.case import TensorSpec


def native(content: bytes, name: str) -> Callable[..., None]:
    """Return a shared object with `kernel_fn` as a function; a refusal raises NotImplementedError."""
    cpp = plugins.load("backends", "cpp")
    # Not by its whole name: the folders above may be closed to the user this runs as.
    path = Path("/proc/self/cwd", f"{name}.so")
    path.write_bytes(content)
    kernel = cpp.open_kernel(path)

    def call(*values: Any) -> None:
        kept = [_argument(value, cpp) for value in values]
        code = kernel(*(ctypes.byref(item) if isinstance(item, ctypes.Structure) else item for item in kept))
        if code:
            raise NotImplementedError(f"{name} declined: {cpp.REFUSALS.get(code, code)}")

    return call


def _argument(value: Any, cpp: Any) -> Any:
    """Return a value as the C ABI has it: a struct for a tensor, int32 for a boolean, int64 or double for a number."""
    if isinstance(value, bool):
        return ctypes.c_int32(value)
    if isinstance(value, int):
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    names = {f"torch.{word}": kind for kind, word in TORCH_NAMES.items()}
    spec = TensorSpec(
        name="argument",
        shape=tuple(value.shape),
        dtype=names[str(value.dtype)],
        strides=tuple(value.stride()),
    )
    return cpp.tensor_struct(spec, value.data_ptr())

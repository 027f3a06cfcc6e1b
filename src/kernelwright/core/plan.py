"""The launch plan: what a tier-A candidate wants launched, as data a trusted launcher can carry out.

Buffers go by name: the case's inputs and outputs, and the plan's own workspaces. No candidate host code is needed
to launch, time or ship such a kernel.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case
from kernelwright.core.frozen import Frozen, Noun

ScalarType = Literal["i1", "i8", "i16", "i32", "i64", "u32", "u64", "fp32", "fp64"]


class BufferArg(Frozen):
    """A pointer to a named buffer."""

    kind: Literal["buffer"] = "buffer"
    name: str
    """An input, an output or a workspace."""
    offset_bytes: int = Field(default=0, ge=0)
    """Bytes from the buffer's first element."""


class ScalarArg(Frozen):
    """A number passed by value."""

    kind: Literal["scalar"] = "scalar"
    value: bool | int | float
    type: ScalarType
    """Width and class in the kernel's signature."""

    @model_validator(mode="after")
    def _fits(self) -> "ScalarArg":
        if not self.type.startswith("fp"):
            bits, signed = int(self.type[1:]), self.type[0] == "i" and self.type != "i1"
            low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
            if isinstance(self.value, float) or not low <= self.value <= high:
                raise ValueError(f"{self.value!r} does not fit {self.type}")
        return self


class TensorMapArg(Frozen):
    """A tensor map passed by value."""

    kind: Literal["tensor_map"] = "tensor_map"
    name: str
    """A tensor map of the plan."""


Arg = Annotated[BufferArg | ScalarArg | TensorMapArg, Field(discriminator="kind")]


MAX_BLOCK = 1024
"""Threads of a block, on every GPU there is."""


class Workspace(Frozen):
    """Scratch memory the launcher owns."""

    name: str
    nbytes: int = Field(ge=0)
    zero_fill: bool = False
    """Whether it must read as zero before every call; otherwise its content is arbitrary."""


class TensorMap(Frozen):
    """A descriptor for the bulk tensor copy engine (TMA) over a named buffer."""

    name: str
    buffer: str
    """The buffer described."""
    dtype: Literal["fp16", "bf16", "fp32", "u8", "i32"]
    shape: tuple[int, ...] = Field(min_length=1, max_length=5)
    """Extents, innermost first."""
    strides_bytes: tuple[int, ...]
    """Bytes between neighbours on every axis but the innermost."""
    box: tuple[int, ...]
    """Extents of one copied tile, innermost first."""
    swizzle: Literal["none", "32b", "64b", "128b"] = "none"
    l2_promotion: Literal["none", "64b", "128b", "256b"] = "128b"

    @model_validator(mode="after")
    def _ranks_agree(self) -> "TensorMap":
        if len(self.box) != len(self.shape) or len(self.strides_bytes) != len(self.shape) - 1:
            raise ValueError(f"tensor map {self.name!r}: shape, box and strides disagree in rank")
        return self


class Launch(Frozen):
    """One kernel launch."""

    kernel: str
    """Name of the kernel in the source."""
    grid: tuple[int, int, int]
    """Blocks per axis; a zero means there is nothing to do and the launch is left out."""
    block: tuple[int, int, int] | None = None
    """Threads per axis; None for Triton, whose metadata says it."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Blocks per cluster."""
    shared_bytes: int = Field(default=0, ge=0)
    """Dynamic shared memory; Triton's own need is in its metadata."""
    args: tuple[Arg, ...] = ()
    """Arguments in the order of the kernel's signature, compile-time constants left out."""
    constants: dict[str, ParamValue] = Field(default_factory=dict)
    """Compile-time constants by name: Triton constexprs, CUDA template values as macros."""
    meta: dict[str, ParamValue] = Field(default_factory=dict)
    """Compiler options such as num_warps and num_stages."""

    @model_validator(mode="after")
    def _fits_a_block(self) -> "Launch":
        """Refuse what no driver takes, before anything is compiled: every GPU's block has the same limit."""
        if self.block is not None and math.prod(self.block) > MAX_BLOCK:
            raise ValueError(
                f"{math.prod(self.block)} threads in a block of {self.kernel!r}; at most {MAX_BLOCK}"
            )
        return self


class LaunchPlan(Frozen):
    """All launches of one call, in stream order."""

    launches: tuple[Launch, ...] = Field(max_length=64)
    workspaces: tuple[Workspace, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()

    def check(self, buffers: frozenset[str]) -> None:
        """Raise ValueError unless every name a launch uses is a buffer of the case or one of the plan's own."""
        own = [space.name for space in self.workspaces]
        for name in own:
            if name in buffers or own.count(name) > 1:
                raise ValueError(f"workspace {name!r} has the name of another buffer")
        known = buffers | set(own)
        maps = {tensor_map.name for tensor_map in self.tensor_maps}
        for tensor_map in self.tensor_maps:
            if tensor_map.buffer not in known:
                raise ValueError(f"tensor map {tensor_map.name!r} names unknown buffer {tensor_map.buffer!r}")
        for launch in self.launches:
            for arg in launch.args:
                if isinstance(arg, BufferArg) and arg.name not in known:
                    raise ValueError(f"launch of {launch.kernel!r} names unknown buffer {arg.name!r}")
                if isinstance(arg, TensorMapArg) and arg.name not in maps:
                    raise ValueError(f"launch of {launch.kernel!r} names unknown tensor map {arg.name!r}")


class Parameter(Frozen):
    """One run-time argument as the compiler sees it."""

    type: str
    """`*fp16` for a pointer, `i32` or `fp32` for a number, `tensor_map`."""
    divisible_by_16: bool = False
    """Whether the address or the integer is known to be a multiple of 16."""
    is_one: bool = False
    """Whether the integer is 1: Triton folds it into the code, as its own launcher would."""


class KernelUnit(Noun):
    """One thing to compile: a kernel, its argument types, its constants and options."""

    kernel: str
    parameters: tuple[Parameter, ...]
    constants: dict[str, ParamValue]
    meta: dict[str, ParamValue]


def kernel_unit(launch: Launch, case: Case) -> KernelUnit:
    """Return what must be compiled for a launch. Workspaces are byte buffers, 256-byte aligned."""
    specs = {spec.name: spec for spec in (*case.inputs, *case.outputs)}
    parameters = []
    for arg in launch.args:
        if isinstance(arg, TensorMapArg):
            parameters.append(Parameter(type="tensor_map"))
        elif isinstance(arg, ScalarArg):
            whole = arg.type[0] in "iu" and not isinstance(arg.value, bool | float)
            parameters.append(
                Parameter(
                    type=arg.type,
                    divisible_by_16=whole and arg.value != 0 and arg.value % 16 == 0,
                    is_one=whole and arg.value == 1,
                )
            )
        elif arg.name in specs:
            spec = specs[arg.name]
            start = spec.offset * spec.dtype.itemsize + arg.offset_bytes
            parameters.append(Parameter(type=f"*{spec.dtype.value}", divisible_by_16=start % 16 == 0))
        else:
            parameters.append(Parameter(type="*u8", divisible_by_16=arg.offset_bytes % 16 == 0))
    return KernelUnit(
        kernel=launch.kernel, parameters=tuple(parameters), constants=launch.constants, meta=launch.meta
    )

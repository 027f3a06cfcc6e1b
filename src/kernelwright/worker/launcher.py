"""The trusted launcher: carries out launch plans from compiled artefacts. No candidate host code exists here.

Works on cubins of any tier-A language: a JSON beside each tells entry, threads, shared memory and what the compiler
appended to the parameters. Launches go straight to the driver on torch's current stream, so they can be captured.
"""

import ctypes
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.backends._bare_launch import (
    DEFAULT_SHARED_BYTES,
    PORTABLE_CLUSTER,
    SCALARS,
    TENSOR_MAP_BYTES,
)
from kernelwright.core.case import Case
from kernelwright.core.plan import (
    BufferArg,
    Launch,
    LaunchPlan,
    ScalarArg,
    TensorMap,
    TensorMapArg,
    kernel_unit,
)


class LaunchFailed(Exception):
    """The driver refused a module, a tensor map or a launch."""


def checked(result: Any) -> Any:
    """Return what a driver call returned besides its code, raising if the code is not success."""
    code, *values = result
    if int(code) != 0:
        raise LaunchFailed(f"driver error {code!r}")
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel and how it wants to be launched."""

    function: Any
    facts: Mapping[str, Any]


class Modules:
    """Loaded kernels by unit; each is loaded once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded: dict[str, Kernel] = {}
        self.handles: list[Any] = []
        """Of the modules they come from."""
        self.keys: dict[tuple[int, int], tuple[Launch, Case, str]] = {}
        """By identity: with them kept here, an address is never another's."""
        self.allowed: dict[str, int] = {}
        """Dynamic shared memory each may have: what sizes ask for differs, the kernel is the same."""

    def kernel(self, launch: Launch, case: Case) -> Kernel:
        """Return the kernel a launch names, compiled for exactly its argument types and constants."""
        from cuda.bindings import driver

        key = self._key(launch, case)
        if key not in self.loaded:
            facts = json.loads((self.folder / f"{key}.json").read_text())
            module = checked(driver.cuModuleLoadData((self.folder / f"{key}.cubin").read_bytes()))
            self.handles.append(module)
            function = checked(driver.cuModuleGetFunction(module, facts["entry"].encode()))
            self.loaded[key] = Kernel(function, facts)
        self._allow(self.loaded[key], launch, key)
        return self.loaded[key]

    def unload(self) -> None:
        """Let go of every kernel, and of what it kept in memory of its module."""
        from cuda.bindings import driver

        self.loaded.clear()
        while self.handles:
            checked(driver.cuModuleUnload(self.handles.pop()))

    def _key(self, launch: Launch, case: Case) -> str:
        """Return the name of a launch's kernel; a graph of 64 calls asks for the same one 64 times."""
        found = self.keys.get((id(launch), id(case)))
        if found is None:
            found = self.keys[id(launch), id(case)] = launch, case, kernel_unit(launch, case).hash[:16]
        return found[2]

    def _allow(self, kernel: Kernel, launch: Launch, key: str) -> None:
        """Have the driver let a kernel use as much shared memory, and clusters as large, as a launch asks for."""
        from cuda.bindings import driver

        shared = max(launch.shared_bytes, kernel.facts.get("shared_bytes", 0))
        usual = DEFAULT_SHARED_BYTES - kernel.facts.get("shared_static", 0)
        if shared > self.allowed.get(key, usual):
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(kernel.function, attribute, shared))
            self.allowed[key] = shared
        if math.prod(launch.cluster) > PORTABLE_CLUSTER:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            checked(driver.cuFuncSetAttribute(kernel.function, attribute, 1))


class PreparedCall:
    """A plan bound to buffers: everything a launch needs is laid out, so that running it is a few driver calls."""

    def __init__(
        self,
        plan: LaunchPlan,
        case: Case,
        modules: Modules,
        buffers: Mapping[str, int],
        spaces: dict[str, Any] | None = None,
    ) -> None:
        """Bind it; workspaces are its own, or those of `spaces`, which is added to."""
        import torch

        self.spaces: dict[str, Any] = {} if spaces is None else spaces
        for space in plan.workspaces:
            if space.name not in self.spaces:
                empty = torch.empty(max(space.nbytes, 16), dtype=torch.uint8, device="cuda")
                self.spaces[space.name] = empty.fill_(0xFF)
        self.zeroed = [self.spaces[space.name] for space in plan.workspaces if space.zero_fill]
        addresses = {**buffers, **{name: space.data_ptr() for name, space in self.spaces.items()}}
        maps = {item.name: encode_tensor_map(item, addresses[item.buffer]) for item in plan.tensor_maps}
        self.launches = [
            _Prepared(launch, modules.kernel(launch, case), addresses, maps) for launch in plan.launches
        ]

    def run(self) -> None:
        """Enqueue all launches on torch's current stream."""
        import torch

        for space in self.zeroed:
            space.zero_()
        stream = torch.cuda.current_stream().cuda_stream
        for launch in self.launches:
            launch.enqueue(stream)


class _Prepared:
    """One launch with its parameters in memory of its own."""

    def __init__(
        self, launch: Launch, kernel: Kernel, addresses: Mapping[str, int], maps: Mapping[str, bytes]
    ) -> None:
        import torch
        from cuda.bindings import driver

        facts = kernel.facts
        folded = set(facts.get("folded", ()))
        values: list[Any] = []
        for position, arg in enumerate(launch.args):
            if position in folded:
                continue
            match arg:
                case BufferArg(name=name, offset_bytes=offset):
                    values.append(ctypes.c_uint64(addresses[name] + offset))
                case ScalarArg(value=value, type=kind):
                    values.append(SCALARS[kind](value))
                case TensorMapArg(name=name):
                    values.append((ctypes.c_char * TENSOR_MAP_BYTES).from_buffer_copy(maps[name]))
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        self.scratch = []
        for name in ("global_scratch", "profile_scratch")[: facts.get("trailing_pointers", 0)]:
            nbytes = facts.get(f"{name}_size", 0) * blocks * facts.get("num_ctas", 1)
            self.scratch.append(
                torch.empty(nbytes + 256, dtype=torch.uint8, device="cuda") if nbytes else None
            )
            values.append(ctypes.c_uint64(_aligned(self.scratch[-1])))
        self.values = values
        self.parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.function = kernel.function
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = launch.block or (facts["threads"], 1, 1)
        config.sharedMemBytes = max(launch.shared_bytes, facts.get("shared_bytes", 0))
        self.attributes = []
        if launch.cluster != (1, 1, 1):
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = driver.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = launch.cluster
            attribute.value = value
            self.attributes = [attribute]
        config.attrs, config.numAttrs = self.attributes, len(self.attributes)
        self.config = config

    def enqueue(self, stream: int) -> None:
        from cuda.bindings import driver

        self.config.hStream = stream
        checked(driver.cuLaunchKernelEx(self.config, self.function, ctypes.addressof(self.parameters), 0))


def _aligned(scratch: Any) -> int:
    return 0 if scratch is None else (int(scratch.data_ptr()) + 127) // 128 * 128


def encode_tensor_map(item: TensorMap, address: int) -> bytes:
    """Return the 128 bytes of a tensor map over a buffer."""
    from cuda.bindings import driver

    kinds = driver.CUtensorMapDataType
    kind = {
        "fp16": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "bf16": kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        "fp32": kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        "u8": kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8,
        "i32": kinds.CU_TENSOR_MAP_DATA_TYPE_INT32,
    }[item.dtype]
    swizzle = getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{item.swizzle.upper()}")
    promotion = "NONE" if item.l2_promotion == "none" else f"L2_{item.l2_promotion.upper()}"
    encoded = checked(
        driver.cuTensorMapEncodeTiled(
            kind,
            len(item.shape),
            address,
            [driver.cuuint64_t(extent) for extent in item.shape],
            [driver.cuuint64_t(stride) for stride in item.strides_bytes],
            [driver.cuuint32_t(extent) for extent in item.box],
            [driver.cuuint32_t(1)] * len(item.shape),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"),
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return ctypes.string_at(encoded.getPtr(), TENSOR_MAP_BYTES)

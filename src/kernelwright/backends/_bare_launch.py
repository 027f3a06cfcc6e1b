"""Calling compiled kernels with the standard library and torch alone: C++ libraries, and plans of GPU kernels.

This file lies beside drop-in modules too, where the package is not installed: it imports nothing of it, and takes
cases, plans and facts as the plain JSON they are written as. Everything that can be laid out is laid out once per
thread; a call fills in addresses. Launches go to torch's current stream, scratch memory comes from torch's allocator,
nothing waits: a call can be captured in a graph.
"""

import ctypes
import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_AXES = 8
DTYPE_CODES = {"fp32": 0, "fp16": 1, "bf16": 2, "fp64": 3, "int64": 4, "int32": 5, "bool": 6}
SCALARS: dict[str, type[Any]] = {
    "i1": ctypes.c_int8,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "fp32": ctypes.c_float,
    "fp64": ctypes.c_double,
}
# Numbers of the driver's own header (cuda.h), the same since CUDA 12.0.
MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER, REGISTERS, CLUSTER_DIMENSION = 8, 14, 4, 4
MAP_DTYPES = {"u8": 0, "i32": 3, "fp16": 6, "fp32": 7, "bf16": 9}
MAP_SIZES = {"none": 0, "32b": 1, "64b": 2, "128b": 3}
MAP_PROMOTIONS = {"none": 0, "64b": 1, "128b": 2, "256b": 3}
TENSOR_MAP_BYTES = 128
DEFAULT_SHARED_BYTES = 48 << 10
PORTABLE_CLUSTER = 8
SCRATCH = ("global_scratch", "profile_scratch")
SCRATCH_ALIGNMENT = 128


class KernelRefused(RuntimeError):
    """A kernel that cannot be loaded or launched here; the message is one line."""


class KwTensor(ctypes.Structure):
    """The C struct `kw_tensor` a C++ kernel is called with."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * MAX_AXES),
        ("stride", ctypes.c_int64 * MAX_AXES),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    )


class _Attribute(ctypes.Structure):
    """The driver's `CUlaunchAttribute`, its value padded to 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    """The driver's `CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    )


def strides_of(spec: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the elements between neighbours on each axis of a tensor of a case."""
    if spec["strides"] is not None:
        return tuple(spec["strides"])
    strides, step = [], 1
    for extent in reversed(spec["shape"]):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def c_number(value: bool | int | float) -> Any:
    """Return a scalar as the C ABI passes it."""
    if isinstance(value, bool):
        return ctypes.c_int32(value)
    return ctypes.c_int64(value) if isinstance(value, int) else ctypes.c_double(value)


def library_of(content: bytes) -> ctypes.CDLL:
    """Load a library from memory: a file could be exchanged after its content was checked."""
    try:
        descriptor = os.memfd_create("kernel")
    except (AttributeError, OSError):  # not a Linux, or not allowed: a copy where nobody else can write
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.so"
            path.write_bytes(content)
            return ctypes.CDLL(str(path))
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        # The loader knows what it holds by name, and a number is given to one file after the other: the path is
        # spelled by the content, so that the same name is the same library.
        bits = f"{int(hashlib.sha256(content).hexdigest(), 16):0256b}"
        spelled = "".join("./" if bit == "1" else "/" for bit in bits)
        return ctypes.CDLL(f"/proc/self/fd/{spelled}{descriptor}")


class NativeKernel:
    """`kernel_fn` of a C++ library, for one case."""

    def __init__(self, library: bytes, case: Mapping[str, Any], name: str = "the library") -> None:
        """Load it from its content; `name` is how it is called if that fails."""
        try:
            self.function = library_of(library).kernel_fn
        except (OSError, AttributeError) as error:
            reason = str(error).rpartition(": ")[2]  # without the path, which says nothing
            raise KernelRefused(f"{name} cannot be loaded: {reason}") from error
        self.function.restype = ctypes.c_int
        self.case = case
        self.threads = threading.local()

    def __call__(self, *addresses: int) -> int:
        """Call it on the addresses of inputs and outputs, in order; what it returns is not 0 if it declines."""
        try:
            structs, arguments = self.threads.ready
        except AttributeError:
            structs, arguments = self.threads.ready = self._laid_out()
        for struct, address in zip(structs, addresses, strict=True):
            struct.data = address
        return int(self.function(*arguments))

    def _laid_out(self) -> tuple[list[KwTensor], tuple[Any, ...]]:
        specs = (*self.case["inputs"], *self.case["outputs"])
        structs = []
        for spec in specs:
            axes = ctypes.c_int64 * MAX_AXES
            shape, strides = axes(*spec["shape"]), axes(*strides_of(spec))
            structs.append(KwTensor(0, shape, strides, len(spec["shape"]), DTYPE_CODES[spec["dtype"]]))
        references = [ctypes.byref(struct) for struct in structs]
        split = len(self.case["inputs"])
        scalars = map(c_number, self.case["scalars"].values())
        return structs, (*references[:split], *scalars, *references[split:])


@functools.cache
def driver() -> Any:
    """Return the CUDA driver's library. `Any`: its functions are ctypes'."""
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise KernelRefused(f"the CUDA driver cannot be loaded: {error}") from error
    found.cuGetErrorName.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
    found.cuMemsetD8Async.argtypes = (ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p)
    found.cuLaunchKernelEx.argtypes = (ctypes.c_void_p,) * 4
    found.cuFuncSetAttribute.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    found.cuFuncGetAttribute.argtypes = (ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_void_p)
    found.cuModuleLoadData.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p)
    found.cuModuleGetFunction.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p)
    found.cuCtxGetCurrent.argtypes = (ctypes.POINTER(ctypes.c_void_p),)
    found.cuCtxSetCurrent.argtypes = (ctypes.c_void_p,)
    found.cuDevicePrimaryCtxRetain.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
    return found


def _checked(code: int, doing: str) -> None:
    """Raise what the driver said, unless it said nothing."""
    if code:
        name = ctypes.c_char_p()
        driver().cuGetErrorName(code, ctypes.byref(name))
        raise KernelRefused(f"{doing}: {(name.value or b'').decode() or f'driver error {code}'}")


def _enter_context(index: int) -> None:
    """Make torch's context the thread's own: a thread that never asked the GPU for anything has none."""
    context = ctypes.c_void_p()
    _checked(driver().cuCtxGetCurrent(ctypes.byref(context)), "asking for the context")
    if not context.value:
        _checked(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), index), "opening the GPU")
        _checked(driver().cuCtxSetCurrent(context), "opening the GPU")


class _TensorMap:
    """A descriptor of the bulk copy engine over a buffer, encoded anew when the buffer is another one."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        rank = len(item["shape"])
        wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        room = (ctypes.c_char * (TENSOR_MAP_BYTES + 64))()
        # The driver encodes on 64 bytes only.
        self.encoded = (ctypes.c_char * TENSOR_MAP_BYTES).from_buffer(room, -ctypes.addressof(room) % 64)
        self.name, self.address = item["name"], ctypes.c_void_p()
        self.arguments = (
            ctypes.byref(self.encoded),
            MAP_DTYPES[item["dtype"]],
            ctypes.c_uint32(rank),
            self.address,
            wide(*item["shape"]),
            wide(*item["strides_bytes"]),  # one less than axes: the last stays unread
            narrow(*item["box"]),
            narrow(*[1] * rank),
            0,
            MAP_SIZES[item["swizzle"]],
            MAP_PROMOTIONS[item["l2_promotion"]],
            0,
        )

    def describe(self, address: int) -> None:
        """Make it describe the buffer at an address."""
        if self.address.value != address:
            self.address.value = address
            _checked(driver().cuTensorMapEncodeTiled(*self.arguments), f"encoding the tensor map {self.name}")


@dataclass
class _Launch:
    """One launch, laid out for one thread."""

    config: _Config
    address: int
    """Where it lies."""
    function: ctypes.c_void_p
    parameters: Any
    """Addresses of the values, as the driver wants them."""
    fills: list[tuple[Any, int, int]]
    """Pointers to fill in: value, number of the buffer, bytes behind its start."""
    maps: list[tuple["_TensorMap", int]]
    """Tensor maps and the number of the buffer each describes."""
    scratch: list[tuple[Any, int]]
    """Pointers the compiler appended, and the bytes behind them."""
    kept: list[Any]
    """What the addresses above point into."""


class PlannedKernel:
    """A launch plan with its compiled kernels on one GPU, for one case."""

    def __init__(
        self,
        case: Mapping[str, Any],
        plan: Mapping[str, Any],
        kernels: Sequence[tuple[bytes, Mapping[str, Any]]],
        index: int,
    ) -> None:
        """Load the kernels at once, one binary with its facts per launch: while a stream is captured it is too late."""
        import torch

        self.plan, self.index, self.torch = plan, index, torch
        # What Inductor's own code asks: the public way is ten times as slow.
        self.current_device, self.current_stream = (
            torch._C._cuda_getDevice,
            torch._C._cuda_getCurrentRawStream,
        )
        self.device = torch.device("cuda", index)
        self.names = [spec["name"] for spec in (*case["inputs"], *case["outputs"])]
        self.names += [space["name"] for space in plan["workspaces"]]
        self.facts = [facts for _, facts in kernels]
        self.threads = threading.local()
        with torch.cuda.device(index):
            torch.cuda.current_stream().query()  # makes torch's own context, if there is none yet
            _enter_context(index)
            self.functions = self._loaded(kernels)
        self.maps = {item["name"]: item for item in plan["tensor_maps"]}
        self.enqueue = driver().cuLaunchKernelEx

    def _loaded(self, kernels: Sequence[tuple[bytes, Mapping[str, Any]]]) -> list[ctypes.c_void_p]:
        """Return a function per launch; one binary is loaded once, and may have all the memory any launch asks for."""
        found: dict[bytes, ctypes.c_void_p] = {}
        needs: dict[bytes, int] = {}
        for launch, (binary, facts) in zip(self.plan["launches"], kernels, strict=True):
            if binary not in found:
                module, function = ctypes.c_void_p(), ctypes.c_void_p()
                doing = f"loading {facts['entry']}"
                _checked(driver().cuModuleLoadData(ctypes.byref(module), binary), doing)
                entry = facts["entry"].encode()
                _checked(driver().cuModuleGetFunction(ctypes.byref(function), module, entry), doing)
                # Asked of it, a function is really loaded: a first launch inside a captured stream could not do that.
                registers = ctypes.c_int()
                _checked(driver().cuFuncGetAttribute(ctypes.byref(registers), REGISTERS, function), doing)
                found[binary] = function
            function = found[binary]
            shared = max(needs.get(binary, 0), launch["shared_bytes"], facts.get("shared_bytes", 0))
            needs[binary] = shared
            if shared + facts.get("shared_static", 0) > DEFAULT_SHARED_BYTES:
                code = driver().cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared)
                _checked(code, f"asking for {shared} bytes of shared memory")
            x, y, z = launch["cluster"]
            if x * y * z > PORTABLE_CLUSTER:
                code = driver().cuFuncSetAttribute(function, NON_PORTABLE_CLUSTER, 1)
                _checked(code, f"asking for clusters of {x * y * z}")
        return [found[binary] for binary, _ in kernels]

    def __call__(self, *addresses: int) -> int:
        """Launch it on the addresses of inputs and outputs, in order, on torch's current stream; returns 0."""
        if self.current_device() != self.index:
            with self.torch.cuda.device(self.index):
                return self._launch(addresses)
        return self._launch(addresses)

    def _launch(self, addresses: Sequence[int]) -> int:
        torch = self.torch
        try:
            launches = self.threads.ready
        except AttributeError:
            _enter_context(self.index)
            launches = self.threads.ready = self._laid_out()
        stream = self.current_stream(self.index)
        buffers, spaces = list(addresses), []
        for space in self.plan["workspaces"]:
            made = torch.empty(max(space["nbytes"], 16), dtype=torch.uint8, device=self.device)
            spaces.append(made)
            buffers.append(made.data_ptr())
            if space["zero_fill"] and space["nbytes"]:
                _checked(
                    driver().cuMemsetD8Async(buffers[-1], 0, space["nbytes"], stream), "zeroing a workspace"
                )
        for launch in launches:
            for value, number, offset in launch.fills:
                value.value = buffers[number] + offset
            for tensor_map, number in launch.maps:
                tensor_map.describe(buffers[number])
            for value, nbytes in launch.scratch:
                made = torch.empty(nbytes + SCRATCH_ALIGNMENT, dtype=torch.uint8, device=self.device)
                spaces.append(
                    made
                )  # given back when all launches are enqueued: the allocator follows the stream
                value.value = -(-made.data_ptr() // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
            launch.config.stream = stream
            code = self.enqueue(launch.address, launch.function, launch.parameters, None)
            if code:
                _checked(code, "launching")
        return 0

    def _laid_out(self) -> list[_Launch]:
        """Return the launches with memory of this thread's own; one with an empty grid is left out."""
        return [
            self._prepared(launch, self.functions[place], self.facts[place])
            for place, launch in enumerate(self.plan["launches"])
            if all(launch["grid"])
        ]

    def _prepared(
        self, launch: Mapping[str, Any], function: ctypes.c_void_p, facts: Mapping[str, Any]
    ) -> _Launch:
        values: list[Any] = []
        fills: list[tuple[Any, int, int]] = []
        maps: list[tuple[_TensorMap, int]] = []
        folded = set(facts.get("folded", ()))
        for position, arg in enumerate(launch["args"]):
            if position in folded:
                continue
            if arg["kind"] == "buffer":
                values.append(ctypes.c_uint64())
                fills.append((values[-1], self.names.index(arg["name"]), arg["offset_bytes"]))
            elif arg["kind"] == "scalar":
                values.append(SCALARS[arg["type"]](arg["value"]))
            else:
                made = _TensorMap(self.maps[arg["name"]])
                values.append(made.encoded)
                maps.append((made, self.names.index(self.maps[arg["name"]]["buffer"])))
        scratch = []
        blocks = launch["grid"][0] * launch["grid"][1] * launch["grid"][2]
        for name in SCRATCH[: facts.get("trailing_pointers", 0)]:
            values.append(ctypes.c_uint64(0))
            if nbytes := facts.get(f"{name}_size", 0) * blocks * facts.get("num_ctas", 1):
                scratch.append((values[-1], nbytes))
        parameters = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
        config = _Config(count=0)
        config.grid[:] = launch["grid"]
        config.block[:] = launch["block"] or (facts["threads"], 1, 1)
        config.shared_bytes = max(launch["shared_bytes"], facts.get("shared_bytes", 0))
        kept: list[Any] = [values]
        if tuple(launch["cluster"]) != (1, 1, 1):
            attribute = _Attribute(id=CLUSTER_DIMENSION)
            attribute.value[:3] = launch["cluster"]
            config.attributes, config.count = ctypes.pointer(attribute), 1
            kept.append(attribute)
        return _Launch(config, ctypes.addressof(config), function, parameters, fills, maps, scratch, kept)

"""What the GPU drivers of this machine say, asked in a process of its own; standard library alone.

`python -m kernelwright.hardware.drivers` prints one JSON line; with a kind and a number it prints what keeps that GPU
from being worked on, an empty text if nothing does. It is a process because initialising a driver leaves
threads and a context behind that do not survive a fork, and because a broken driver may hang or crash its caller.

1. NVIDIA: libcuda itself, in its own order of devices (which is torch's order; nvidia-smi has another one).
2. AMD: libamdhip64 by attribute. `hipGetDeviceProperties` fills a struct that changed its layout between versions, so
   only the architecture is taken from it, found by its spelling in a buffer larger than any version of the struct.
3. What neither tells (driver version, AMD's Infinity Cache) is read from the kernel.
"""

import ctypes
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

NAME_BYTES = 256
CUDA_ATTRIBUTES = {
    "units": 16,
    "clock_khz": 13,
    "memory_clock_khz": 36,
    "bus_bits": 37,
    "cache_bytes": 38,
    "has_ecc": 32,
    "major": 75,
    "minor": 76,
    "shared_bytes": 97,  # per block, opt-in
}
"""CUdevice_attribute by the name we give it; part of the driver's binary interface, so the numbers never change."""
HIP_ATTRIBUTES = {
    "units": 63,
    "clock_khz": 5,
    "memory_clock_khz": 60,
    "bus_bits": 59,
    "cache_bytes": 19,
    "has_ecc": 0,
    "shared_bytes": 74,
}
"""hipDeviceAttribute_t of ROCm 5 and later; the numbers before that were others."""
HIP_PROPERTIES = ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties")
"""The versioned symbol first: the plain one fills the old layout on ROCm 6."""
PROPERTIES_BYTES = 16384
"""Ten times the largest hipDeviceProp_t known."""
GFX = re.compile(rb"(gfx[0-9a-f]{3,5})(?::[a-z]+[+-])*\0")
SMI_SECONDS = 10
TOUCHED_BYTES = 1 << 20
OUT_OF_MEMORY = 2
"""Both drivers' number for it."""


class NoDriver(Exception):
    """A driver that is not there or does not answer."""

    def __init__(self, words: str, code: int = 0) -> None:
        super().__init__(words)
        self.code = code
        """What it returned, if it answered at all."""


def _library(names: Iterable[str]) -> ctypes.CDLL:
    problems = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            problems.append(str(error))
    raise NoDriver(problems[0])


def _call(library: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function that returns 0 on success."""
    try:
        entry = getattr(library, function)
    except AttributeError as error:
        raise NoDriver(f"{function} is missing from the driver") from error
    entry.restype = ctypes.c_int
    if code := entry(*arguments):
        raise NoDriver(f"{function} returned error {code}", code)


def _integer(library: ctypes.CDLL, function: str, *arguments: object) -> int:
    value = ctypes.c_int(0)
    _call(library, function, ctypes.byref(value), *arguments)
    return value.value


def _memory(library: ctypes.CDLL, function: str, device: ctypes.c_int) -> int:
    value = ctypes.c_size_t(0)
    _call(library, function, ctypes.byref(value), device)
    return value.value


def _text(library: ctypes.CDLL, function: str, device: ctypes.c_int) -> str:
    buffer = ctypes.create_string_buffer(NAME_BYTES)
    _call(library, function, buffer, ctypes.c_int(NAME_BYTES), device)
    return buffer.value.decode(errors="replace").strip()


def _attributes(
    library: ctypes.CDLL, function: str, numbers: dict[str, int], device: ctypes.c_int
) -> dict[str, int]:
    """Return the attributes by name; one the driver does not know is 0."""
    found = dict.fromkeys(numbers, 0)
    for name, number in numbers.items():
        with suppress(NoDriver):
            found[name] = max(0, _integer(library, function, ctypes.c_int(number), device))
    return found


def _uuid(library: ctypes.CDLL, functions: Iterable[str], device: ctypes.c_int) -> str:
    """Return the driver's name for the very piece of silicon; empty if it has none."""
    for function in functions:
        buffer = ctypes.create_string_buffer(16)
        try:
            _call(library, function, buffer, device)
        except NoDriver:
            continue
        return str(uuid.UUID(bytes=buffer.raw))
    return ""


def cuda_gpus(root: Path) -> dict[str, object]:
    """Return the NVIDIA GPUs and their driver's version."""
    library = _library(("libcuda.so.1", "libcuda.so"))
    _call(library, "cuInit", ctypes.c_uint(0))
    gpus = []
    for index in range(_integer(library, "cuDeviceGetCount")):
        device = ctypes.c_int(_integer(library, "cuDeviceGet", ctypes.c_int(index)))
        found = _attributes(library, "cuDeviceGetAttribute", CUDA_ATTRIBUTES, device)
        gpus.append(
            {
                "index": index,
                "name": _text(library, "cuDeviceGetName", device),
                "arch": f"sm_{found.pop('major')}{found.pop('minor')}",
                "memory_bytes": _memory(library, "cuDeviceTotalMem_v2", device),
                # The second version names a slice of a GPU (MIG), the first only the whole.
                "uuid": _uuid(library, ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"), device),
                **found,
            }
        )
    return {"driver": _nvidia_version(root) or f"CUDA {_cuda_version(library)}", "gpus": gpus}


def _cuda_version(library: ctypes.CDLL) -> str:
    version = _integer(library, "cuDriverGetVersion")
    return f"{version // 1000}.{version % 1000 // 10}"


def _nvidia_version(root: Path) -> str:
    """Return the driver's version from NVML, the kernel module or nvidia-smi; empty if none knows."""
    try:
        nvml = _library(("libnvidia-ml.so.1",))
        _call(nvml, "nvmlInit_v2")
        buffer = ctypes.create_string_buffer(80)
        _call(nvml, "nvmlSystemGetDriverVersion", buffer, ctypes.c_uint(80))
        return buffer.value.decode(errors="replace")
    except NoDriver:
        pass
    if match := re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _read(root / "proc/driver/nvidia/version")):
        return match[1]
    if (command := shutil.which("nvidia-smi")) is None:
        return ""
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.split("\n")[0].strip() if done.returncode == 0 else ""


def rocm_gpus(root: Path) -> dict[str, object]:
    """Return the AMD GPUs and their driver's version."""
    library = _library(_hip_places())
    _call(library, "hipInit", ctypes.c_uint(0))
    gpus = []
    for index in range(_integer(library, "hipGetDeviceCount")):
        device = ctypes.c_int(_integer(library, "hipDeviceGet", ctypes.c_int(index)))
        found = _attributes(library, "hipDeviceGetAttribute", HIP_ATTRIBUTES, device)
        node = _kfd_node(root, _pci_address(library, device))
        # HIP knows the L2 of one die (4 MB on MI300X); what must be exceeded to be cold is the Infinity Cache.
        found["cache_bytes"] = max(found["cache_bytes"], _last_cache_bytes(node))
        gpus.append(
            {
                "index": index,
                "name": _text(library, "hipDeviceGetName", device),
                "arch": _gfx(library, device) or _kfd_gfx(node),
                "memory_bytes": _memory(library, "hipDeviceTotalMem", device),
                "uuid": _uuid(library, ("hipDeviceGetUuid",), device),
                **found,
            }
        )
    module = _read(root / "sys/module/amdgpu/version").strip()
    return {"driver": f"amdgpu {module}" if module else f"HIP {_hip_version(library)}", "gpus": gpus}


def _hip_places() -> list[str]:
    """Return where the HIP runtime may be: the loader's path, ROCm's folder, inside torch's wheel."""
    places = [f"libamdhip64.so{suffix}" for suffix in ("", ".7", ".6", ".5")]
    places.append("/opt/rocm/lib/libamdhip64.so")
    torch = importlib.util.find_spec("torch")  # found, not imported
    folders = torch.submodule_search_locations if torch else None
    return places + [str(Path(folder, "lib", "libamdhip64.so")) for folder in folders or ()]


def _hip_version(library: ctypes.CDLL) -> str:
    version = _integer(library, "hipDriverGetVersion")
    return f"{version // 10_000_000}.{version % 10_000_000 // 100_000}.{version % 100_000}"


def _gfx(library: ctypes.CDLL, device: ctypes.c_int) -> str:
    """Return the architecture from the device's properties; empty if it is not spelled there."""
    for function in HIP_PROPERTIES:
        buffer = ctypes.create_string_buffer(PROPERTIES_BYTES)
        try:
            _call(library, function, buffer, device)
        except NoDriver:
            continue
        # The struct opens with the device's name, 256 bytes that may say gfx for another reason.
        if match := GFX.search(buffer.raw, NAME_BYTES):
            return match[1].decode()
    return ""


def _pci_address(library: ctypes.CDLL, device: ctypes.c_int) -> str:
    buffer = ctypes.create_string_buffer(64)
    try:
        _call(library, "hipDeviceGetPCIBusId", buffer, ctypes.c_int(64), device)
    except NoDriver:
        return ""
    return buffer.value.decode(errors="replace")


def _kfd_node(root: Path, address: str) -> Path | None:
    """Return the kernel's folder for the GPU at a PCI address such as 0000:c1:00.0."""
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]+):([0-9a-f]+)\.([0-7])", address.lower())
    if match is None:
        return None
    domain, bus, slot, function = (int(part, 16) for part in match.groups())
    for node in sorted(root.glob("sys/class/kfd/kfd/topology/nodes/*")):
        facts = _facts(node / "properties")
        place = (facts.get("domain", 0), facts.get("location_id"))
        if facts.get("simd_count") and place == (domain, bus << 8 | slot << 3 | function):
            return node
    return None


def _last_cache_bytes(node: Path | None) -> int:
    """Return the bytes of the third-level cache of a GPU, 0 if the kernel tells of none."""
    caches = [_facts(path) for path in node.glob("caches/*/properties")] if node else []
    return sum(cache.get("size", 0) << 10 for cache in caches if cache.get("level") == 3)


def _kfd_gfx(node: Path | None) -> str:
    """Return the architecture from the kernel: 90402 is gfx942, 90010 is gfx90a."""
    version = _facts(node / "properties").get("gfx_target_version", 0) if node else 0
    return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}" if version else "unknown"


def _facts(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def report(root: Path) -> dict[str, object]:
    """Return what each driver says: its devices, or a note why there are none."""
    asked: dict[str, Callable[[Path], dict[str, object]]] = {"cuda": cuda_gpus, "rocm": rocm_gpus}
    answer: dict[str, object] = {}
    for kind, ask in asked.items():
        try:
            answer[kind] = ask(root)
        except NoDriver as error:
            answer[kind] = {"driver": "", "gpus": [], "note": str(error)}
    return answer


def absence(kind: str, index: int) -> str:
    """Return why nothing can be run on a GPU, empty if a context can be made and its memory written."""
    try:
        _touch_hip(index) if kind == "rocm" else _touch_cuda(index)
    except NoDriver as error:
        # A GPU whose memory is full is there: somebody filled it, perhaps the very candidate in question.
        return "" if error.code == OUT_OF_MEMORY else str(error)
    return ""


def _touch_cuda(index: int) -> None:
    library = _library(("libcuda.so.1", "libcuda.so"))
    _call(library, "cuInit", ctypes.c_uint(0))
    device = ctypes.c_int(_integer(library, "cuDeviceGet", ctypes.c_int(index)))
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    _call(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(library, "cuCtxSetCurrent", context)
    _call(library, "cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(TOUCHED_BYTES))
    _call(library, "cuMemsetD8_v2", memory, ctypes.c_ubyte(1), ctypes.c_size_t(TOUCHED_BYTES))
    _call(library, "cuCtxSynchronize")


def _touch_hip(index: int) -> None:
    library, memory = _library(_hip_places()), ctypes.c_void_p()
    _call(library, "hipSetDevice", ctypes.c_int(index))
    _call(library, "hipMalloc", ctypes.byref(memory), ctypes.c_size_t(TOUCHED_BYTES))
    _call(library, "hipMemset", memory, ctypes.c_int(1), ctypes.c_size_t(TOUCHED_BYTES))
    _call(library, "hipDeviceSynchronize")


if __name__ == "__main__":
    asked = sys.argv[1:]
    said: object = absence(asked[0], int(asked[1])) if asked else report(Path("/"))
    sys.stdout.write(json.dumps(said) + "\n")

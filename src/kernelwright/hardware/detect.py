"""Which devices this machine has, asked from the drivers and the kernel, never guessed from a name.

1. A short-lived child (`drivers.py`) asks the GPU drivers and prints one JSON line: no driver is ever initialised in
   the process that calls `devices`, so it may fork as it likes and a broken driver cannot take it down.
2. The line is parsed; a child that hangs, crashes or talks nonsense means no GPU and a note that says so.
3. The CPU is read from the kernel, within what the process may use: affinity, cgroup quota and memory limit.
"""

import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import Field, ValidationError

import kernelwright
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.environment import child_environment
from kernelwright.core.errors import DeviceMissing
from kernelwright.core.frozen import Frozen

DRIVER_SECONDS = 30.0
"""Initialising eight GPUs without a persistence daemon takes about ten seconds."""
KILL_SECONDS = 1.0
SYSCTL_SECONDS = 5
UNITS = {"K": 10, "M": 20, "G": 30}


class Gpu(Frozen):
    """One GPU as its driver describes it."""

    index: int = Field(ge=0)
    """Number in the driver's own order, which is torch's."""
    name: str
    """The driver's own name."""
    arch: str
    """Target name of the compilers: sm_90, gfx942."""
    uuid: str
    """The driver's name for the very piece of silicon; empty if it has none."""
    units: int = Field(ge=0)
    """Multiprocessors or compute units."""
    memory_bytes: int = Field(ge=0)
    """Memory a kernel can address."""
    cache_bytes: int = Field(ge=0)
    """Last-level cache on the device."""
    shared_bytes: int = Field(ge=0)
    """Shared memory one block may ask for."""
    clock_khz: int = Field(ge=0)
    """Highest clock of the multiprocessors, 0 if not told."""
    memory_clock_khz: int = Field(ge=0)
    """Highest clock of the memory, 0 if not told."""
    bus_bits: int = Field(ge=0)
    """Width of the memory bus, 0 if not told."""
    has_ecc: bool
    """Whether error correction is on: it costs bandwidth on GDDR memory."""


class DriverAnswer(Frozen):
    """What one driver says."""

    driver: str
    """Its version."""
    gpus: tuple[Gpu, ...]
    """Its devices."""
    note: str = ""
    """Why there are none."""


class DriversAnswer(Frozen):
    """The line the child prints."""

    cuda: DriverAnswer
    """NVIDIA's driver."""
    rocm: DriverAnswer
    """AMD's driver."""


class Found(NamedTuple):
    """What was found: devices, and why there are no more."""

    devices: list[Device]
    """Every device, GPUs first, the CPU last."""
    uuids: dict[str, str]
    """Driver's UUID by device hash, for GPUs that have one."""
    notes: list[str]
    """What went wrong with a driver, in its own words; a driver that is simply not there is noted too."""


def devices(timeout_s: float = DRIVER_SECONDS) -> list[Device]:
    """Return every device, GPUs first, the CPU last."""
    return found(timeout_s).devices


def found(timeout_s: float = DRIVER_SECONDS) -> Found:
    """Return every device with what only detection knows of it."""
    return parse(*ask_drivers(timeout_s))


def torch_device(name: str) -> Device:
    """Return the device that torch calls `cpu`, `cuda` or `cuda:1`."""
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return cpu_device()
    gpus = [one for one in devices() if one.kind is not DeviceKind.CPU and one.index == int(number or 0)]
    if not gpus:
        raise DeviceMissing(name, "its driver does not answer", "`kernelwright doctor` shows what is here.")
    return gpus[0]


def uuid_of(device: Device) -> str:
    """Return the driver's UUID of a GPU, empty for a CPU and for a device that is no longer there."""
    return "" if device.kind is DeviceKind.CPU else found().uuids.get(device.hash, "")


def absence(device: Device, timeout_s: float = DRIVER_SECONDS) -> str:
    """Return why nothing can be run on a GPU, empty if a fresh process can; a CPU is always there."""
    if device.kind is DeviceKind.CPU:
        return ""
    line, note = ask_drivers(timeout_s, device.kind.value, str(device.index))
    return str(json.loads(line)) if line else note


def ask_drivers(timeout_s: float, *arguments: str) -> tuple[str, str]:
    """Return the line the child printed and an empty note, or no line and a note why."""
    root = Path(kernelwright.__file__).parents[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", "kernelwright.hardware.drivers", *arguments],
            env=child_environment(os.environ, root, Path(tempfile.gettempdir()), 1),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            # A process stuck inside a driver cannot die before the driver lets go: it is not waited for.
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)
            return "", f"the GPU drivers did not answer in {timeout_s:g} s"
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    if code or not lines:
        return "", f"the process that asks the GPU drivers ended with {code}"
    return lines[-1], ""


def parse(line: str, note: str = "") -> Found:
    """Return the devices of one line of the child; the CPU alone if the line is not one."""
    if not line:
        return Found([cpu_device()], {}, [note])
    try:
        answer = DriversAnswer.model_validate_json(line)
    except ValidationError as error:
        return Found(
            [cpu_device()], {}, [f"the GPU drivers' answer cannot be read: {error.errors()[0]['msg']}"]
        )
    gpus: list[Device] = []
    uuids: dict[str, str] = {}
    for kind, said in ((DeviceKind.CUDA, answer.cuda), (DeviceKind.ROCM, answer.rocm)):
        for gpu in said.gpus:
            device = _gpu_device(kind, said.driver, gpu)
            gpus.append(device)
            if gpu.uuid:
                uuids[device.hash] = gpu.uuid
    notes = [said.note for said in (answer.cuda, answer.rocm) if said.note]
    return Found([*gpus, cpu_device()], uuids, notes)


def _gpu_device(kind: DeviceKind, driver: str, gpu: Gpu) -> Device:
    return Device(
        kind=kind,
        name=gpu.name,
        arch=gpu.arch,
        index=gpu.index,
        driver=driver,
        units=max(1, gpu.units),
        memory_bytes=gpu.memory_bytes,
        cache_bytes=gpu.cache_bytes,
        shared_bytes=gpu.shared_bytes,
    )


def cpu_device(root: Path = Path("/")) -> Device:
    """Return the host's own cores as a device."""
    return Device(
        kind=DeviceKind.CPU,
        name=_cpu_name(root),
        arch=platform.machine(),
        driver=platform.release(),
        units=usable_cores(root),
        memory_bytes=_memory_bytes(root),
        cache_bytes=_last_level_cache(root, affinity()),
    )


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores this process may keep busy: its affinity within its cgroup's quota."""
    return max(1, min(len(affinity()), _cpu_quota(root)))


def affinity() -> frozenset[int]:
    """Return the numbers of the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))  # macOS has no affinity


def _cpu_quota(root: Path) -> int:
    """Return the cores the cgroups allow, rounded up; more threads than that are stopped, not slowed."""
    quotas = [_words(folder / "cpu.max") for folder in _cgroups(root, "")]
    quotas += [
        [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
        for folder in _cgroups(root, "cpu")
    ]
    limits = [math.ceil(int(q[0]) / int(q[1])) for q in quotas if len(q) == 2 and q[0].isdigit()]
    return min(limits, default=sys.maxsize)


def _memory_bytes(root: Path) -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = [folder / "memory.max" for folder in _cgroups(root, "")]
    files += [folder / "memory.limit_in_bytes" for folder in _cgroups(root, "memory")]
    limits = [int(words[0]) for file in files if (words := _words(file)) and words[0].isdigit()]
    return min([physical, *limits])


def _cgroups(root: Path, controller: str) -> list[Path]:
    """Return this process's cgroup and those above it; the unified hierarchy has no controller in its name."""
    top = root / "sys/fs/cgroup" / controller
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            # Inside a container the path may be the host's: what is not there is skipped, the top always counts.
            inner = top / path.strip("/")
            return [inner, *(folder for folder in inner.parents if folder.is_relative_to(top))]
    return [top]


def _cpu_name(root: Path) -> str:
    pairs = (line.split(":", 1) for line in _text(root / "proc/cpuinfo").splitlines() if ":" in line)
    info = {key.strip(): value.strip() for key, value in pairs}
    if name := info.get("model name"):
        return name
    if part := info.get("CPU part"):  # ARM kernels give numbers, not names
        return f"ARM implementer {info.get('CPU implementer', '?')} part {part}"
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def _last_level_cache(root: Path, cores: frozenset[int]) -> int:
    """Return the bytes of the last-level caches those cores use together, 0 if the kernel tells of none."""
    shared: dict[tuple[int, str], int] = {}
    for core in cores:
        for folder in root.glob(f"sys/devices/system/cpu/cpu{core}/cache/index*"):
            size, level = _text(folder / "size").strip(), _text(folder / "level").strip()
            if size[-1:] in UNITS and size[:-1].isdigit() and level.isdigit():
                sharers = _text(folder / "shared_cpu_list").strip() or str(core)
                shared[int(level), sharers] = int(size[:-1]) << UNITS[size[-1]]
    if shared:
        last = max(level for level, _ in shared)
        return sum(size for (level, _), size in shared.items() if level == last)
    told = [_sysctl(name) for name in ("hw.l3cachesize", "hw.perflevel0.l2cachesize", "hw.l2cachesize")]
    return max((int(size) for size in told if size.isdigit()), default=0)


def _sysctl(name: str) -> str:
    """Return a fact macOS keeps; empty elsewhere and for an unknown name."""
    if platform.system() != "Darwin":
        return ""
    command = ["/usr/sbin/sysctl", "-n", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SYSCTL_SECONDS, check=False)
    return done.stdout.strip()


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

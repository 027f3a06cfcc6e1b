"""What a machine tells of itself while something is timed on it: load, clocks, power, temperature."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from kernelwright.core.device import Device, DeviceKind

FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
NVML = ("libnvidia-ml.so.1",)
CLOCK_SM, CLOCK_MEMORY, TEMPERATURE_GPU = 1, 2, 0


def reading(device: Device) -> dict[str, float]:
    """Return what can be read now, by name with its unit; what a machine does not tell is left out."""
    found = {"load": os.getloadavg()[0]}
    if device.kind is DeviceKind.CPU:
        with suppress(OSError, ValueError):
            found["cpu_mhz"] = int(FREQUENCY.read_text()) / 1e3
    elif device.kind is DeviceKind.CUDA:
        with suppress(OSError):
            found |= _nvidia(device.index)
    return found


def known_to_nvml(index: int, visible: str) -> int | bytes:
    """Return what NVML calls the GPU that is number `index` to us: it counts those that are hidden from us too."""
    names = visible.split(",")
    name = names[index].strip() if index < len(names) else ""
    if name.isdecimal():
        return int(name)
    return name.encode() if name.startswith(("GPU-", "MIG-")) else index


def _nvidia(index: int) -> dict[str, float]:
    """Ask NVML; raises OSError where there is none."""
    nvml = ctypes.CDLL(NVML[0])
    if nvml.nvmlInit_v2() != 0:
        return {}
    handle, name = ctypes.c_void_p(), known_to_nvml(index, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    by_name = (
        nvml.nvmlDeviceGetHandleByUUID if isinstance(name, bytes) else nvml.nvmlDeviceGetHandleByIndex_v2
    )
    if by_name(name, ctypes.byref(handle)) != 0:
        return {}
    found: dict[str, float] = {}

    def ask(name: str, function: str, divisor: float, *arguments: int) -> None:
        value = ctypes.c_uint()
        if getattr(nvml, function)(handle, *arguments, ctypes.byref(value)) == 0:
            found[name] = value.value / divisor

    ask("sm_mhz", "nvmlDeviceGetClockInfo", 1, CLOCK_SM)
    ask("memory_mhz", "nvmlDeviceGetClockInfo", 1, CLOCK_MEMORY)
    ask("power_w", "nvmlDeviceGetPowerUsage", 1e3)
    ask("celsius", "nvmlDeviceGetTemperature", 1, TEMPERATURE_GPU)
    return found

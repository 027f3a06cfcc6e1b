"""Telemetry beside a timing: what a machine tells is read with its unit, what it does not tell is left out."""

import subprocess
from pathlib import Path

import pytest

from kernelwright.core.device import Device, DeviceKind
from kernelwright.hardware import telemetry
from kernelwright.hardware.telemetry import reading
from kernelwright.judge.clock import MOST_READINGS, by_name, thinned

CPU = Device(kind=DeviceKind.CPU, name="test", arch="x86_64", units=2, memory_bytes=1)
GPU = Device(kind=DeviceKind.CUDA, name="test", arch="sm_90", units=132, memory_bytes=1, index=1)
NVML = """
extern "C" {
int nvmlInit_v2() { return INIT; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
    *handle = reinterpret_cast<void*>(0x100000000ul + index);
    return index < 2 ? 0 : 2;
}
static int answer(void* handle, unsigned value, unsigned* out) {
    *out = value;
    return handle == reinterpret_cast<void*>(0x100000001ul) ? 0 : 1;
}
int nvmlDeviceGetClockInfo(void* handle, unsigned kind, unsigned* out) {
    return answer(handle, kind == 1 ? 1980 : kind == 2 ? 3201 : 0, out);
}
int nvmlDeviceGetPowerUsage(void* handle, unsigned* out) { return POWER ? POWER : answer(handle, 350500, out); }
int nvmlDeviceGetTemperature(void* handle, unsigned, unsigned* out) { return answer(handle, 61, out); }
}
"""


@pytest.mark.parametrize(
    ("index", "visible", "name"),
    [
        (1, "", 1),
        (1, "3,2", 2),
        (0, "GPU-7a,1", b"GPU-7a"),
        (0, "MIG-9", b"MIG-9"),
        (2, "0,1", 2),
        (0, "odd", 0),
    ],
)
def test_a_gpu_is_asked_for_by_what_nvml_calls_it(index: int, visible: str, name: int | bytes) -> None:
    assert telemetry.known_to_nvml(index, visible) == name


@pytest.fixture
def frequency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a /sys of our own in which a CPU's clock would stand."""
    path = tmp_path / "sys" / telemetry.FREQUENCY.relative_to("/sys")
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(telemetry, "FREQUENCY", path)
    return path


def library(folder: Path, monkeypatch: pytest.MonkeyPatch, *macros: str) -> None:
    """Build a driver's library that knows two GPUs, and make it the one that is asked."""
    path = folder / "libnvidia-ml.so.1"
    flags = [f"-D{name}" for name in ("INIT=0", "POWER=0") if name.split("=")[0] not in " ".join(macros)]
    command = ["g++", "-shared", "-fPIC", *flags, *(f"-D{macro}" for macro in macros), "-x", "c++", "-"]
    subprocess.run([*command, "-o", str(path)], input=NVML, text=True, check=True)
    monkeypatch.setattr(telemetry, "NVML", (str(path),))


def test_a_cpu_tells_its_clock_in_megahertz_and_the_machine_its_load(frequency: Path) -> None:
    frequency.write_text("2794500\n")
    loads = [float(Path("/proc/loadavg").read_text().split()[0])]
    found = reading(CPU)
    loads.append(float(Path("/proc/loadavg").read_text().split()[0]))
    assert (found.keys(), found["cpu_mhz"]) == ({"load", "cpu_mhz"}, 2794.5)
    assert min(loads) - 0.01 < found["load"] < max(loads) + 0.01  # the file has two decimals


@pytest.mark.parametrize("content", [None, "", "<unsupported>\n"])
def test_a_clock_that_cannot_be_read_is_left_out(content: str | None, frequency: Path) -> None:
    if content is not None:
        frequency.write_text(content)
    assert reading(CPU).keys() == {"load"}


def test_a_clock_behind_a_folder_is_left_out(frequency: Path) -> None:
    frequency.mkdir()
    assert reading(CPU).keys() == {"load"}


def test_a_gpu_is_asked_for_clocks_power_and_temperature_by_its_own_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(tmp_path, monkeypatch)
    found = reading(GPU)
    del found["load"]
    assert found == {"sm_mhz": 1980.0, "memory_mhz": 3201.0, "power_w": 350.5, "celsius": 61.0}


def test_what_a_gpu_refuses_to_tell_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path, monkeypatch, "POWER=3")
    assert reading(GPU).keys() == {"load", "sm_mhz", "memory_mhz", "celsius"}


@pytest.mark.parametrize("trouble", ["no library", "no driver", "no such GPU"])
def test_without_a_driver_or_a_gpu_only_the_load_is_told(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "no library":
        monkeypatch.setattr(telemetry, "NVML", (str(tmp_path / "absent.so"),))
    else:
        library(tmp_path, monkeypatch, "INIT=9" if trouble == "no driver" else "INIT=0")
    device = GPU.model_copy(update={"index": 7}) if trouble == "no such GPU" else GPU
    assert reading(device).keys() == {"load"}


def test_readings_of_every_heat_are_kept_by_name_up_to_a_bound() -> None:
    heats = [
        {"load": float(number)} | ({"sm_mhz": 1980.0} if number else {}) for number in range(MOST_READINGS)
    ]
    told = by_name(heats)
    assert told == {"load": [float(number) for number in range(MOST_READINGS)], "sm_mhz": [1980.0] * 63}
    assert thinned(told["load"]) == tuple(told["load"])
    many = thinned([float(number) for number in range(1000)])
    assert (len(many), many[0], many[-1], many == tuple(sorted(set(many)))) == (
        MOST_READINGS,
        0.0,
        999.0,
        True,
    )

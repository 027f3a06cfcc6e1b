"""Devices come from the drivers and the kernel; a driver that lies, hangs or dies costs the GPUs, never the process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelwright.core.device import DeviceKind
from kernelwright.hardware import detect

H200 = {
    "index": 0,
    "name": "NVIDIA H200",
    "arch": "sm_90",
    "memory_bytes": 150_109_880_320,
    "uuid": "5a1ed9f4-0c5b-1c60-9a39-53a1b1c0ffee",
    "units": 132,
    "clock_khz": 1_980_000,
    "memory_clock_khz": 3_201_000,
    "bus_bits": 6144,
    "cache_bytes": 62_914_560,
    "has_ecc": 1,
    "shared_bytes": 232_448,
}
NO_AMD = {"driver": "", "gpus": [], "note": "libamdhip64.so: cannot open shared object file"}

FAKE_CUDA = r"""
#include <cstdlib>
#include <cstring>
#include <unistd.h>
extern "C" {
int cuInit(unsigned) {
#ifdef HANGS
  for (;;) pause();
#endif
#ifdef DIES
  abort();
#endif
#ifdef REFUSES
  return 803;
#endif
  return 0;
}
int cuDriverGetVersion(int* v) { *v = 13000; return 0; }
int cuDeviceGetCount(int* n) { *n = 2; return 0; }
int cuDeviceGet(int* device, int index) { *device = 40 + index; return 0; }
int cuDeviceGetName(char* name, int size, int) { strncpy(name, "NVIDIA H200", size); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = 150109880320ull; return 0; }
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) { memset(uuid, device, 16); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 75: *value = 9; return 0;
    case 76: *value = 0; return 0;
    case 16: *value = 132; return 0;
    case 38: *value = 62914560; return 0;
    case 97: *value = 232448; return 0;
    case 13: *value = 1980000; return 0;
    case 32: *value = 1; return 0;
    default: return 1;
  }
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
#ifdef FELL_OFF
  return 999;
#endif
  *context = (void*)(0x700000000000ull + device);
  return 0;
}
int cuCtxSetCurrent(void* context) { return context == (void*)(0x700000000000ull + 41) ? 0 : 201; }
int cuMemAlloc_v2(unsigned long long* memory, size_t) {
#ifdef FULL
  return 2;
#endif
  *memory = 0x7f0000000000ull;
  return 0;
}
int cuMemsetD8_v2(unsigned long long memory, unsigned char, size_t) { return memory == 0x7f0000000000ull ? 0 : 1; }
int cuCtxSynchronize() {
#ifdef LOST
  return 719;
#endif
  return 0;
}
}
"""
FAKE_NVML = r"""
#include <cstring>
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { strncpy(text, "580.159.04", size); return 0; }
}
"""
FAKE_HIP = r"""
#include <cstring>
extern "C" {
int hipInit(unsigned) { return 0; }
int hipDriverGetVersion(int* v) { *v = 70226015; return 0; }
int hipGetDeviceCount(int* n) { *n = 1; return 0; }
int hipDeviceGet(int* device, int index) { *device = index; return 0; }
int hipDeviceGetName(char* name, int size, int) { strncpy(name, "AMD Instinct MI300X", size); return 0; }
int hipDeviceTotalMem(size_t* bytes, int) { *bytes = 206141652992ull; return 0; }
int hipDeviceGetUuid(unsigned char* uuid, int) { memcpy(uuid, "f3300dc4d00dee2b", 16); return 0; }
int hipDeviceGetPCIBusId(char* text, int size, int) { strncpy(text, "0000:C1:00.0", size); return 0; }
int hipDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 63: *value = 304; return 0;
    case 19: *value = 4194304; return 0;
    case 74: *value = 65536; return 0;
    default: return 1;
  }
}
#ifdef PROPERTIES
int hipGetDevicePropertiesR0600(char* p, int) {
  strcpy(p, "gfx000 is only a name");
  strcpy(p + 1160, "gfx942:sramecc+:xnack-");
  return 0;
}
#endif
}
"""


def line(*gpus: dict[str, object], driver: str = "580.159.04") -> str:
    return json.dumps({"cuda": {"driver": driver, "gpus": list(gpus)}, "rocm": NO_AMD})


def library(folder: Path, name: str, source: str, *macros: str) -> None:
    command = ["g++", "-shared", "-fPIC", *(f"-D{macro}" for macro in macros), "-x", "c++", "-", "-o"]
    subprocess.run([*command, str(folder / name)], input=source, text=True, check=True, timeout=60)


def test_the_drivers_line_becomes_a_device_with_the_drivers_own_figures() -> None:
    gpu, cpu = detect.parse(line(H200)).devices
    assert (gpu.kind, gpu.index, gpu.name, gpu.arch) == (DeviceKind.CUDA, 0, "NVIDIA H200", "sm_90")
    assert (gpu.units, gpu.memory_bytes, gpu.cache_bytes) == (132, 150_109_880_320, 62_914_560)
    assert (gpu.shared_bytes, gpu.driver) == (232_448, "580.159.04")
    assert cpu.kind is DeviceKind.CPU


def test_two_gpus_of_one_name_are_two_devices_with_their_own_uuids() -> None:
    found = detect.parse(line(H200, H200 | {"index": 1, "uuid": "second"}))
    first, second, _ = found.devices
    assert first.hash != second.hash
    assert (found.uuids[first.hash], found.uuids[second.hash]) == (H200["uuid"], "second")


@pytest.mark.parametrize(
    "text", ["{}", "Segmentation fault", line(H200)[:-40], line(H200 | {"units": "many"}), "[]", "null"]
)
def test_an_answer_that_cannot_be_read_leaves_the_cpu_and_says_so(text: str) -> None:
    found = detect.parse(text)
    assert [device.kind for device in found.devices] == [DeviceKind.CPU]
    assert "cannot be read" in found.notes[0]


def test_a_driver_that_is_not_there_is_noted_in_its_own_words() -> None:
    assert detect.parse(line(H200)).notes == [NO_AMD["note"]]


def test_libcuda_is_asked_in_a_child_and_neither_it_nor_torch_is_loaded_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(tmp_path, "libcuda.so.1", FAKE_CUDA)
    library(tmp_path, "libnvidia-ml.so.1", FAKE_NVML)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = detect.found()
    first, second = (device for device in found.devices if device.kind is DeviceKind.CUDA)
    assert (first.name, first.arch, first.units, first.driver) == ("NVIDIA H200", "sm_90", 132, "580.159.04")
    assert (first.memory_bytes, first.cache_bytes, first.shared_bytes) == (
        150_109_880_320,
        62_914_560,
        232_448,
    )
    assert (second.index, found.uuids[second.hash]) == (1, "29292929-2929-2929-2929-292929292929")
    assert detect.uuid_of(second) == found.uuids[second.hash]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    script = "import sys, kernelwright.hardware.detect as d; d.devices(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0


def test_a_driver_that_hangs_is_given_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path, "libcuda.so.1", FAKE_CUDA, "HANGS")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    began = time.monotonic()
    found = detect.found(timeout_s=1.0)
    assert time.monotonic() - began < 30
    assert [device.kind for device in found.devices] == [DeviceKind.CPU]
    assert found.notes == ["the GPU drivers did not answer in 1 s"]


def test_a_driver_that_kills_its_caller_kills_only_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(tmp_path, "libcuda.so.1", FAKE_CUDA, "DIES")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = detect.found()
    assert [device.kind for device in found.devices] == [DeviceKind.CPU]
    assert found.notes == ["the process that asks the GPU drivers ended with -6"]


def test_a_driver_that_refuses_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path, "libcuda.so.1", FAKE_CUDA, "REFUSES")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "cuInit returned error 803" in detect.found().notes


@pytest.mark.parametrize(
    ("macro", "words"),
    [
        ("HEALTHY", ""),
        ("FULL", ""),
        ("REFUSES", "cuInit returned error 803"),
        ("FELL_OFF", "cuDevicePrimaryCtxRetain returned error 999"),
        ("LOST", "cuCtxSynchronize returned error 719"),
        ("DIES", "the process that asks the GPU drivers ended with -6"),
        ("HANGS", "the GPU drivers did not answer in 2 s"),
    ],
)
def test_a_gpu_is_there_if_a_fresh_process_can_write_its_memory(
    macro: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(tmp_path, "libcuda.so.1", FAKE_CUDA, macro)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    second = detect.parse(line(H200, H200 | {"index": 1})).devices[1]
    assert detect.absence(second, timeout_s=2 if macro == "HANGS" else detect.DRIVER_SECONDS) == words


@pytest.mark.parametrize("macros", [["PROPERTIES"], []])
def test_an_amd_gpu_is_described_by_hip_and_the_kernel(tmp_path: Path, macros: list[str]) -> None:
    library(tmp_path, "libamdhip64.so", FAKE_HIP, *macros)
    node = tmp_path / "sys/class/kfd/kfd/topology/nodes/1"
    (node / "caches/0").mkdir(parents=True)
    (node / "caches/0/properties").write_text("processor_id_low 2\nlevel 3\nsize 262144\n")
    (node / "properties").write_text(
        "simd_count 1216\ngfx_target_version 90402\nlocation_id 49408\ndomain 0\nhive_id 99\n"
    )
    script = (
        "import json, pathlib, sys; from kernelwright.hardware.drivers import report; "
        "print(json.dumps(report(pathlib.Path(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    gpu = next(d for d in detect.parse(done.stdout.strip()).devices if d.kind is DeviceKind.ROCM)
    # The architecture comes from the properties or, where those do not spell it, from the kernel.
    assert (gpu.name, gpu.arch, gpu.units) == ("AMD Instinct MI300X", "gfx942", 304)
    assert gpu.cache_bytes == 256 << 20, "the Infinity Cache, not one die's L2"
    assert (gpu.memory_bytes, gpu.driver) == (206_141_652_992, "HIP 7.2.26015")


def tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_cpu_is_named_by_its_kernel_and_has_memory_and_a_core() -> None:
    cpu = detect.cpu_device()
    assert cpu.kind is DeviceKind.CPU and cpu.name and cpu.arch
    assert 1 <= cpu.units <= (os.cpu_count() or 1)
    assert cpu.memory_bytes > 1 << 28


def test_an_arm_core_without_a_name_is_named_by_its_part(tmp_path: Path) -> None:
    root = tree(tmp_path, proc__cpuinfo="processor : 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n")
    assert detect.cpu_device(root).name == "ARM implementer 0x41 part 0xd4f"


def test_a_cgroups_quota_limits_the_cores_that_count(tmp_path: Path) -> None:
    root = tree(tmp_path / "v2", proc__self__cgroup="0::/job\n")
    tree(root / "sys/fs/cgroup/job", **{"cpu.max": "max 100000\n"})
    assert detect.usable_cores(root) == len(os.sched_getaffinity(0))
    tree(root / "sys/fs/cgroup/job", **{"cpu.max": "50000 100000\n", "memory.max": "1073741824\n"})
    assert detect.usable_cores(root) == 1
    assert detect.cpu_device(root).memory_bytes == 1 << 30


def test_a_quota_of_the_older_cgroups_limits_them_too(tmp_path: Path) -> None:
    root = tree(tmp_path, proc__self__cgroup="4:memory:/a\n1:cpu,cpuacct:/a/b\n")
    quota = root / "sys/fs/cgroup/cpu/a"  # set on the group above ours
    tree(quota, **{"cpu.cfs_quota_us": "100000\n", "cpu.cfs_period_us": "100000\n"})
    assert detect.usable_cores(root) == 1


def test_last_level_caches_are_summed_over_those_the_cores_really_use(tmp_path: Path) -> None:
    for core, sharers in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/cache"
        tree(folder / "index2", size="2048K\n", level="2\n", shared_cpu_list=f"{core}\n")
        tree(folder / "index3", size="32M\n", level="3\n", shared_cpu_list=f"{sharers}\n")
    assert detect._last_level_cache(tmp_path, frozenset({0, 1, 2, 3})) == 64 << 20
    assert detect._last_level_cache(tmp_path, frozenset({0, 1})) == 32 << 20

"""GPUs that tests and benchmarks compile for where there is none."""

from kernelwright.core.device import Device, DeviceKind

H200 = Device(
    kind=DeviceKind.CUDA,
    name="NVIDIA H200",
    arch="sm_90",
    units=132,
    memory_bytes=139 << 30,
    cache_bytes=60 << 20,
    shared_bytes=227 << 10,
)

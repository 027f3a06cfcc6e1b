"""What the maker says a GPU can do at most: a prior, looked up by the driver's whole name, checked on the card."""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources

from pydantic import Field

from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.frozen import Frozen
from kernelwright.core.roofline import Work

TABLE = "peaks.toml"
COMPUTE_CLASSES = ("fp32", "tf32", "fp16", "bf16", "fp8")
LEAST_MEMORY, MOST_MEMORY = 0.88, 1.05
"""Share of the card's memory a driver may report; a slice of the card has half of it or less."""


class Peak(Frozen):
    """One row of the table: dense figures of the data sheet."""

    names: tuple[str, ...] = Field(min_length=1)
    """Every full name the driver may report for the part."""
    part: str
    """What people call it."""
    arch: str
    """Target of the compilers."""
    units: int = Field(ge=1)
    """Multiprocessors or compute units."""
    memory_gib: float = Field(gt=0)
    """Memory of the whole card."""
    cache_mib: float = Field(gt=0)
    """Last-level cache on the device."""
    bandwidth_gbs: float = Field(gt=0)
    """Memory bandwidth in 1e9 bytes a second."""
    fp32_tflops: float = Field(gt=0)
    """Plain fp32, no matrix unit."""
    tf32_tflops: float | None = Field(default=None, gt=0)
    """Products rounded to tf32; None without such a unit."""
    fp16_tflops: float = Field(gt=0)
    """fp16 products summed in fp32."""
    bf16_tflops: float = Field(gt=0)
    """bf16 products summed in fp32."""
    fp8_tflops: float | None = Field(default=None, gt=0)
    """fp8 products summed in fp32; None without such a unit."""
    source: str = Field(min_length=1)
    """Where the figures come from."""

    @property
    def bandwidth(self) -> float:
        """Return the memory bandwidth in bytes a second."""
        return self.bandwidth_gbs * 1e9

    @property
    def flops(self) -> dict[str, float]:
        """Return FLOP/s by compute class; a class without a unit of its own is left out."""
        rates = {name: getattr(self, f"{name}_tflops") for name in COMPUTE_CLASSES}
        return {name: rate * 1e12 for name, rate in rates.items() if rate is not None}

    def is_of(self, device: Device) -> bool:
        """Tell whether a device is this very part, whole: name, architecture, units and memory all agree."""
        share = device.memory_bytes / 2**30 / self.memory_gib
        return (
            device.name.casefold() in {name.casefold() for name in self.names}
            and device.arch == self.arch
            and device.units == self.units
            and LEAST_MEMORY <= share <= MOST_MEMORY
        )


@cache  # 8 ms to parse, and every brief on a GPU asks
def table() -> tuple[Peak, ...]:
    """Return all rows."""
    text = resources.files("kernelwright.hardware").joinpath(TABLE).read_text("utf-8")
    return tuple(Peak.model_validate(row) for row in tomllib.loads(text)["gpu"])


def peak(device: Device, rows: Sequence[Peak] | None = None) -> Peak | None:
    """Return the data sheet's figures for a device; None for a CPU, a slice of a card and a card nobody entered."""
    if device.kind is DeviceKind.CPU:
        return None
    return next((row for row in rows or table() if row.is_of(device)), None)


def least_seconds(work: Work, device: Device) -> float | None:
    """Return what some work takes at best by a device's data sheet; None where there is none."""
    sheet = peak(device)
    if sheet is None:
        return None
    rate = sheet.flops.get(work.compute_class)
    return max(work.bytes_moved / sheet.bandwidth, work.flops / rate if rate else 0.0)

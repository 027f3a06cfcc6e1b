"""The table of data sheets is complete and plausible, and a row is found by the card's whole name or not at all."""

from collections import Counter

import pytest

from kernelwright.core.device import Device, DeviceKind
from kernelwright.hardware.peaks import Peak, peak, table

ROWS = table()
WITHOUT_FP8 = {"sm_80", "sm_86"}
WITHOUT_TF32 = {"gfx950"}


def gpu(name: str, arch: str = "sm_90", units: int = 132, gib: float = 80) -> Device:
    kind = DeviceKind.ROCM if arch.startswith("gfx") else DeviceKind.CUDA
    return Device(kind=kind, name=name, arch=arch, units=units, memory_bytes=int(gib * 2**30))


def whole(row: Peak, name: str) -> Device:
    return gpu(name, row.arch, row.units, row.memory_gib * 0.97)


def test_the_sxm_h100_is_not_the_pcie_part() -> None:
    sxm = peak(gpu("NVIDIA H100 80GB HBM3", gib=79.6))
    assert sxm is not None
    assert (sxm.part, sxm.bandwidth_gbs, sxm.fp16_tflops) == ("H100 SXM", 3352, 989.4)
    pcie = peak(gpu("NVIDIA H100 PCIe", units=114, gib=79.1))
    assert pcie is not None
    assert (pcie.part, pcie.bandwidth_gbs, pcie.fp16_tflops) == ("H100 PCIe", 2039, 756)


def test_the_h200_is_known() -> None:
    row = peak(gpu("NVIDIA H200", gib=139.8))
    assert row is not None
    assert row.bandwidth == 4.8e12
    expected = {"fp32": 66.9e12, "tf32": 494.7e12, "fp16": 989.4e12, "bf16": 989.4e12, "fp8": 1978.9e12}
    assert row.flops == pytest.approx(expected)


@pytest.mark.parametrize(
    "device",
    [
        gpu("NVIDIA H300"),
        gpu("NVIDIA H100"),
        gpu("H100"),
        gpu("NVIDIA H200 NVL", gib=140),
        gpu("NVIDIA A10G", "sm_86", 80, 22.3),
        gpu("NVIDIA GeForce RTX 4090 D", "sm_89", 114, 23.6),
        gpu("NVIDIA GeForce RTX 4090 Laptop GPU", "sm_89", 76, 15.6),
        gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", units=16, gib=9.75),
    ],
    ids=lambda device: device.name,
)
def test_a_name_that_only_resembles_one_of_the_table_is_unknown(device: Device) -> None:
    assert peak(device) is None


@pytest.mark.parametrize(
    "device",
    [
        gpu("NVIDIA H100 80GB HBM3", units=66),
        gpu("NVIDIA H100 80GB HBM3", gib=39),
        gpu("NVIDIA H100 80GB HBM3", arch="sm_80"),
        gpu("AMD Instinct MI300X", "gfx942", 38, 24),
    ],
    ids=["half the multiprocessors", "half the memory", "another architecture", "one of eight partitions"],
)
def test_a_slice_of_a_card_is_not_the_card(device: Device) -> None:
    assert peak(device) is None


def test_a_cpu_has_no_row() -> None:
    cpu = Device(kind=DeviceKind.CPU, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=140 << 30)
    assert peak(cpu) is None


def test_every_part_we_promise_is_in_the_table() -> None:
    assert {row.part for row in ROWS} == {
        "H100 SXM", "H100 PCIe", "H100 NVL", "H200 SXM", "A100 SXM 40 GB", "A100 SXM 80 GB", "A100 PCIe 40 GB",
        "A100 PCIe 80 GB", "L40S", "L4", "A10", "RTX 3090", "RTX 4090", "RTX 5090", "B200 SXM", "MI300X", "MI325X",
        "MI350X", "MI355X",
    }  # fmt: skip


def test_no_two_rows_share_a_name() -> None:
    counted = Counter(name.casefold() for row in ROWS for name in row.names)
    assert [name for name, count in counted.items() if count > 1] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.part)
def test_a_row_is_found_by_each_of_its_names_in_any_case(row: Peak) -> None:
    for name in row.names:
        assert peak(whole(row, name)) == row
        assert peak(whole(row, name.upper())) == row


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.part)
def test_a_rows_figures_fit_together(row: Peak) -> None:
    rates = row.flops
    assert row.bf16_tflops == row.fp16_tflops
    assert ("fp8" in rates) == (row.arch not in WITHOUT_FP8)
    assert ("tf32" in rates) == (row.arch not in WITHOUT_TF32)
    # Dense, not sparse: each narrower type doubles the rate of the next wider one, within the makers' rounding.
    if "fp8" in rates:
        assert 1.99 <= rates["fp8"] / rates["fp16"] <= 2.03
    if "tf32" in rates:
        assert 1.96 <= rates["fp16"] / rates["tf32"] <= 2.05
    # FLOPs per byte at which a kernel stops being limited by memory: 76 (RTX 3090) to 419 (L40S) in fp16.
    assert 70 <= rates["fp16"] / row.bandwidth <= 430
    assert 9 <= rates["fp32"] / row.bandwidth <= 110
    # A clock that turns the units into the fp32 rate: 128 or 64 lanes (A100), 256 FLOPs per unit on CDNA.
    per_unit = {"sm_80": 128, "gfx942": 256, "gfx950": 256}.get(row.arch, 256)
    assert 1.3e9 <= rates["fp32"] / row.units / per_unit <= 2.6e9

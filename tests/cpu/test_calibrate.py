"""Ceilings are measured, robust against a disturbed point, cached, and compared with the data sheet."""

import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelwright.core.device import Ceiling, Ceilings, Device, DeviceKind
from kernelwright.core.errors import CalibrationFailed, NotWritable
from kernelwright.core.roofline import Work, floor_us
from kernelwright.hardware import calibrate
from kernelwright.hardware.calibrate import Calibration, cache_path, ceilings
from kernelwright.hardware.cpu_peak import most_flops
from kernelwright.hardware.detect import cpu_device
from kernelwright.hardware.peaks import table
from kernelwright.hardware.points import MatrixPoint, Measured, StreamPoint, derived, fitted

MIB = 1 << 20
H200 = next(row for row in table() if row.part == "H200 SXM")
COPIES_ON_AN_H200 = ((32, 9.97), (64, 17.96), (128, 33.6), (256, 64.9), (512, 127.7))
"""MiB and microseconds, from the sweep the floors of the board were drawn from."""


def points(*pairs: tuple[float, float]) -> tuple[StreamPoint, ...]:
    return tuple(StreamPoint(bytes_moved=int(moved), time_us=time_us) for moved, time_us in pairs)


def on_the_line(fixed_us: float, rate: float) -> list[tuple[float, float]]:
    return [(moved, fixed_us + moved / rate * 1e6) for moved in (8 * MIB << step for step in range(7))]


def h200(copy: float = 4279e9, read: float = 4499e9, **flops: float) -> Calibration:
    gpu = Device(kind=DeviceKind.CUDA, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=140 << 30)
    line = points(*on_the_line(1.0, copy))
    return Calibration(
        device=gpu,
        ceilings=Ceilings(
            copying=Ceiling(fixed_us=2.2, rate=copy),
            reading=Ceiling(fixed_us=1.0, rate=read),
            flops={"fp16": 790e12} | flops,
        ),
        measured=Measured(streams={"copying": line, "reading": line}, matrices=(), empty_us=1.0),
        versions={},
        at=datetime(2026, 1, 1, tzinfo=UTC),
        seconds=1.0,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def measured(home: Path) -> Calibration:
    """Return a real calibration of this machine's cores, measured once."""
    return ceilings(cpu_device(), home)


def test_a_planted_line_is_recovered_despite_an_outlier() -> None:
    planted = on_the_line(2.2, 4279e9)
    planted[5] = (planted[5][0], 7 * planted[5][1])
    line = fitted(points(*planted))
    assert line.rate == pytest.approx(4279e9, rel=1e-6)
    assert line.fixed_us == pytest.approx(2.2, rel=1e-4)


def test_a_planted_line_is_recovered_through_noise() -> None:
    rng = random.Random(7)
    noisy = [(moved, time_us * rng.gauss(1, 0.01)) for moved, time_us in on_the_line(2.2, 4279e9)]
    assert fitted(points(*noisy)).rate == pytest.approx(4279e9, rel=0.03)


def test_the_sweep_of_the_h200_board_gives_its_line() -> None:
    line = fitted(points(*((mib * MIB, time_us) for mib, time_us in COPIES_ON_AN_H200)))
    assert line.rate == pytest.approx(4279e9, rel=0.005)
    assert line.fixed_us == pytest.approx(2.2, abs=0.1)


@pytest.mark.parametrize("fixed_us", [-5.0, -0.1])
def test_a_negative_fixed_cost_becomes_a_line_through_zero(fixed_us: float) -> None:
    line = fitted(points(*((moved, time_us + 6) for moved, time_us in on_the_line(fixed_us - 6, 1e9))))
    assert line.fixed_us == 0
    assert line.rate == pytest.approx(1e9, rel=0.01)


def test_the_best_product_counts_and_fp32_bounds_the_narrower_types() -> None:
    line = points(*on_the_line(1, 1e9))
    products = [("fp32", "nn", 20.0), ("fp16", "nn", 10.0), ("fp16", "nt", 5.0), ("bf16", "nn", 80.0)]
    matrices = tuple(MatrixPoint(compute_class=c, size=1000, layout=at, time_us=t) for c, at, t in products)
    rates = derived(Measured(streams={"copying": line, "reading": line}, matrices=matrices, empty_us=0)).flops
    assert rates == pytest.approx({"fp32": 1e14, "tf32": 1e14, "fp16": 4e14, "bf16": 1e14})


def test_the_better_of_copy_and_triad_is_the_line_of_what_reads_and_writes() -> None:
    slow, fast = points(*on_the_line(1, 1e9)), points(*on_the_line(1, 2e9))
    streams = {"copying": slow, "triad": fast, "reading": slow, "kernel_copy": points(*on_the_line(1, 9e9))}
    assert derived(Measured(streams=streams, matrices=(), empty_us=0)).copying.rate == pytest.approx(2e9)


def test_a_floor_does_not_begin_with_the_time_threads_take_to_wake_up() -> None:
    line = tuple(StreamPoint(bytes_moved=n << 20, time_us=80 + 50 * n) for n in (2, 4, 8, 16))
    streams = {"copying": line, "reading": line}
    found = derived(Measured(streams=streams, matrices=(), empty_us=0.5))
    assert (found.reading.fixed_us, found.copying.fixed_us) == (2.0, 2.0)
    assert found.reading.rate == pytest.approx((1 << 20) / 50e-6)
    honest = derived(Measured(streams=streams, matrices=(), empty_us=30.0))
    assert honest.reading.fixed_us == pytest.approx(80)


def test_an_h200_as_it_should_be_disagrees_with_nothing() -> None:
    assert h200(tf32=400e12, fp32=50e12).disagreements(H200) == []


def test_each_figure_far_from_the_data_sheet_is_named_with_both_numbers() -> None:
    said = h200(copy=2000e9, fp32=300e12).disagreements(H200)
    assert said == [
        "copy bandwidth: measured 2000 GB/s, 54% below the 4320 GB/s usual for a data sheet of 4800",
        "fp32 matrix rate: measured 300 TFLOP/s, 461% above the 53.52 TFLOP/s usual for a data sheet of 66.9",
    ]


def test_an_unknown_card_disagrees_with_nobody() -> None:
    assert h200(copy=1.0).disagreements(None) == []


def test_the_cores_of_this_machine_have_positive_ceilings(measured: Calibration) -> None:
    found = measured.ceilings
    assert 1e8 < found.copying.rate < 1e13 and 1e8 < found.reading.rate < 1e13
    assert {"fp32", "tf32", "fp16", "bf16"} <= set(found.flops)
    assert min(found.flops.values()) == found.flops["fp32"] > 1e8
    assert {name: len(sweep) >= 4 for name, sweep in measured.measured.streams.items()} == dict.fromkeys(
        ("copying", "reading", "triad"), True
    )
    work = Work(bytes_read=1 << 20, bytes_written=1 << 20, flops=2 * 1024**3, compute_class="fp32")
    assert 0 < floor_us(work, found) < 1e8


@pytest.mark.skipif(most_flops("fp32") is None, reason="needs a CPU whose flags are known")
def test_no_product_of_this_machine_comes_near_what_its_instructions_rule_out(measured: Calibration) -> None:
    for name, reached in measured.ceilings.flops.items():
        assert 2 * reached < (most_flops(name) or 0), name


def test_torch_stays_in_the_child(measured: Calibration) -> None:
    assert "torch" in measured.versions
    script = "import sys, kernelwright.hardware.calibrate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


def test_a_second_call_reads_the_cache(
    measured: Calibration, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "measured_apart", lambda device: pytest.fail("it was measured again"))
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        assert ceilings(cpu_device(), home) == measured
        taken.append(time.perf_counter() - began)
    assert min(taken) < 0.05


@pytest.mark.parametrize("damage", ["", "{", '{"device": 1}'])
def test_a_corrupt_cache_is_measured_anew(
    measured: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(calibrate, "measured_apart", lambda device: measured)
    path = cache_path(measured.device, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(damage)
    assert ceilings(measured.device, tmp_path) == measured
    assert Calibration.model_validate_json(path.read_bytes()) == measured
    assert list(path.parent.iterdir()) == [path], "no half-written file is left"


def test_fresh_another_driver_and_another_version_are_measured_anew(
    measured: Calibration, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def again(device: Device) -> Calibration:
        asked.append(device.driver)
        return measured.model_copy(update={"device": device})

    monkeypatch.setattr(calibrate, "measured_apart", again)
    updated = measured.device.model_copy(update={"driver": "newer"})
    ceilings(measured.device, home)
    assert asked == []
    ceilings(measured.device, home, fresh=True)
    ceilings(updated, home)
    monkeypatch.setattr(calibrate, "CALIBRATION_VERSION", calibrate.CALIBRATION_VERSION + 1)
    ceilings(measured.device, home)
    assert asked == [measured.device.driver, "newer", measured.device.driver]


def test_a_measurement_that_takes_too_long_is_an_error_that_names_the_device() -> None:
    began = time.monotonic()
    with pytest.raises(CalibrationFailed, match=r"ceilings of cpu:0 .* no result within 0.2 s"):
        calibrate.measured_apart(cpu_device(), timeout_s=0.2)
    assert time.monotonic() - began < 60


def test_a_gpu_that_is_not_there_is_an_error_with_the_childs_last_words() -> None:
    gpu = Device(
        kind=DeviceKind.CUDA, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=1 << 37, index=63
    )
    with pytest.raises(CalibrationFailed, match="NVIDIA H200") as failed:
        calibrate.measured_apart(gpu)
    assert "Error" in str(failed.value)


def test_a_home_that_cannot_be_written_is_named(
    measured: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "measured_apart", lambda device: measured)
    (tmp_path / "home").write_text("a file where a folder should be")
    with pytest.raises(NotWritable, match="home"):
        ceilings(measured.device, tmp_path / "home")


KERNELS = """
import torch
from kernelwright.hardware import gpu_streams as streams

for shape in streams.SHAPES:
    chunk = shape.block * shape.steps
    x = torch.randint(-8, 8, (5 * chunk,)).float()
    out, copied = torch.full((5,), 777.0), torch.full((5 * chunk,), 777.0)
    streams.read_chunk[(5,)](x, out, BLOCK=shape.block, STEPS=shape.steps)
    streams.copy_chunk[(5,)](x, copied, BLOCK=shape.block, STEPS=shape.steps)
    assert torch.equal(out, x.view(5, -1).sum(1)), shape
    assert torch.equal(copied, x), shape
"""


def test_the_stream_kernels_read_and_copy_every_element_once() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KERNELS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr

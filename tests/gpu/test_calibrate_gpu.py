"""On an H200 the calibration repeats the lines the board's floors were drawn from. Needs one NVIDIA H200."""

import pytest

from kernelwright.core.device import Device
from kernelwright.hardware.calibrate import Calibration, ceilings
from kernelwright.hardware.detect import devices
from kernelwright.hardware.peaks import peak

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def h200() -> Device:
    found = next((device for device in devices() if device.name == "NVIDIA H200"), None)
    if found is None:
        pytest.skip("no NVIDIA H200 here")
    return found


@pytest.fixture(scope="module")
def calibration(h200: Device, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    return ceilings(h200, tmp_path_factory.mktemp("home"), fresh=True)


def test_detection_describes_the_h200(h200: Device) -> None:
    assert (h200.arch, h200.units) == ("sm_90", 132)
    assert h200.cache_bytes == pytest.approx(60 << 20, rel=0.05)
    assert h200.shared_bytes == 227 << 10
    assert peak(h200) is not None


def test_copies_reach_the_boards_bandwidth(calibration: Calibration) -> None:
    assert calibration.ceilings.copying.rate == pytest.approx(4279e9, rel=0.05)
    assert 0.5 < calibration.ceilings.copying.fixed_us < 5


def test_reads_reach_the_boards_bandwidth(calibration: Calibration) -> None:
    assert calibration.ceilings.reading.rate == pytest.approx(4499e9, rel=0.05)
    assert 0.5 < calibration.ceilings.reading.fixed_us < 4


def test_half_products_reach_the_boards_rate(calibration: Calibration) -> None:
    assert calibration.ceilings.flops["fp16"] == pytest.approx(790e12, rel=0.10)
    assert calibration.ceilings.flops["bf16"] == pytest.approx(790e12, rel=0.10)


def test_an_empty_node_costs_about_a_microsecond(calibration: Calibration) -> None:
    assert calibration.measured.empty_us == pytest.approx(1.0, abs=0.5)


def test_nothing_disagrees_with_the_data_sheet(h200: Device, calibration: Calibration) -> None:
    assert calibration.disagreements(peak(h200)) == []


def test_the_whole_calibration_takes_less_than_half_a_minute(calibration: Calibration) -> None:
    assert calibration.seconds < 30

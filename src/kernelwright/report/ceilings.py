"""The ceilings of a device as far as this machine knows them; nothing is measured for a report."""

from pathlib import Path

from pydantic import ValidationError

from kernelwright.core.device import Device
from kernelwright.hardware.calibrate import Calibration, cache_path
from kernelwright.hardware.peaks import peak
from kernelwright.report.model import Roof


def roof_of(device: Device, home: Path) -> Roof | None:
    """Return what the device was measured to do, else what its data sheet says, else None."""
    try:
        known = Calibration.model_validate_json(cache_path(device, home).read_bytes())
    except (OSError, ValidationError):
        return _data_sheet(device)
    found = known.ceilings
    return Roof(source="measured here", bandwidth=found.copying.rate, flops=dict(found.flops))


def _data_sheet(device: Device) -> Roof | None:
    sheet = peak(device)
    if sheet is None:
        return None
    return Roof(source=f"data sheet of {sheet.part}", bandwidth=sheet.bandwidth, flops=sheet.flops)

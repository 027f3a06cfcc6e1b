"""The ceilings of a device as far as this machine knows them; nothing is measured for a report."""

from pathlib import Path

from kernelwright.core.device import Device
from kernelwright.hardware.calibrate import known_ceilings
from kernelwright.hardware.peaks import peak
from kernelwright.report.model import Roof


def roof_of(device: Device, home: Path) -> Roof | None:
    """Return what the device was measured to do, else what its data sheet says, else None."""
    found = known_ceilings(device, home)
    if found is None:
        return _data_sheet(device)
    return Roof(source="measured here", bandwidth=found.copying.rate, flops=dict(found.flops))


def _data_sheet(device: Device) -> Roof | None:
    sheet = peak(device)
    if sheet is None:
        return None
    return Roof(source=f"data sheet of {sheet.part}", bandwidth=sheet.bandwidth, flops=sheet.flops)

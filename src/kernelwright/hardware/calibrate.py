"""What a device was measured to do: plain streams swept over sizes and matrix products, cached per device and driver.

1. `ceilings` looks for a result of the same device, driver, torch and calibration version under the home folder.
2. Without one it takes the device's lock and starts `python -m kernelwright.hardware.calibrate --measure`: torch lives
   in that child alone. The device goes in on stdin, one JSON line comes out.
3. Times of the streams become straight lines (a fixed cost and a rate); the raw points are kept beside them.
4. `Calibration.disagreements` compares with the data sheet: a figure far from what such a card normally reaches means a
   throttled, shared or misnamed device, or a wrong row of the table.

`python -m kernelwright.hardware.calibrate --device cuda:0` measures afresh and prints the result.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import Field, ValidationError

import kernelwright
from kernelwright.core.device import Ceilings, Device, DeviceKind
from kernelwright.core.environment import child_environment
from kernelwright.core.errors import CalibrationFailed, NotWritable
from kernelwright.core.frozen import Frozen, canonical_json, digest
from kernelwright.hardware.detect import devices
from kernelwright.hardware.lock import DeviceLock
from kernelwright.hardware.peaks import Peak
from kernelwright.hardware.points import Measured, derived

CALIBRATION_VERSION = 2
"""Part of the cache's key: raised whenever a change of the measurement changes its numbers."""
MEASURE_SECONDS = 180.0
VERSIONED = ("torch", "triton")
USUAL_BANDWIDTH = 0.9
"""Share of the data sheet's bandwidth a plain stream normally reaches: copy 0.89, read 0.94 on an H200."""
USUAL_MATRIX = 0.8
"""Share of the data sheet's matrix rate a large product on random data normally reaches: 0.80 on an H200."""
TOLERATED = 0.15
"""How far from the usual a figure may be before it is said."""


class Calibration(Frozen):
    """The ceilings of one device with all they were made from."""

    device: Device
    """What was measured."""
    ceilings: Ceilings
    """The lines and rates every floor uses."""
    measured: Measured
    """The raw points."""
    versions: dict[str, str]
    """Libraries the result depends on."""
    calibration_version: int = CALIBRATION_VERSION
    """Which measurement this was."""
    at: datetime
    """When."""
    seconds: float = Field(ge=0)
    """How long the measurement took, imports included."""

    def disagreements(self, peak: Peak | None) -> list[str]:
        """Return a sentence per figure more than 15 % off the usual share of the data sheet's (0.9 and 0.8)."""
        if peak is None:
            return []
        streams = {"copy": self.ceilings.copying.rate, "read": self.ceilings.reading.rate}
        said = [
            _disagreement(f"{name} bandwidth", rate, peak.bandwidth, USUAL_BANDWIDTH, (1e9, "GB/s"))
            for name, rate in streams.items()
        ]
        said += [
            _disagreement(f"{name} matrix rate", rate, peak.flops[name], USUAL_MATRIX, (1e12, "TFLOP/s"))
            for name, rate in self.ceilings.flops.items()
            if name in peak.flops
        ]
        return [sentence for sentence in said if sentence]


def _disagreement(what: str, rate: float, sheet: float, usual: float, unit: tuple[float, str]) -> str:
    expected = usual * sheet
    off = rate / expected - 1
    if abs(off) <= TOLERATED:
        return ""
    scale, name = unit
    return (
        f"{what}: measured {rate / scale:.4g} {name}, {abs(off):.0%} {'above' if off > 0 else 'below'} the "
        f"{expected / scale:.4g} {name} usual for a data sheet of {sheet / scale:.4g}"
    )


def ceilings(
    device: Device, home: Path, fresh: bool = False, show: Callable[[str], None] = lambda _: None
) -> Calibration:
    """Return the device's calibration, from the cache unless `fresh`; call it before taking the device's lock."""
    path = cache_path(device, home)
    if not fresh and (known := _cached(path, device)):
        return known
    with DeviceLock(device, show=show):
        # Whoever held the lock may have been measuring the same.
        if not fresh and (known := _cached(path, device)):
            return known
        show(f"measuring what {device.name} can do")
        calibration = measured_apart(device)
    _write(path, calibration.model_dump_json(indent=1))
    return calibration


def known_ceilings(device: Device, home: Path) -> Ceilings | None:
    """Return what the device was measured to reach, if this machine knows; nothing is measured."""
    known = _cached(cache_path(device, home), device)
    return known.ceilings if known else None


def cache_path(device: Device, home: Path) -> Path:
    """Return where the calibration of a device, its driver and our libraries is kept."""
    key = canonical_json([device.identity(), versions(), CALIBRATION_VERSION])
    return home / "cache" / "ceilings" / f"{digest(key)[:24]}.json"


def versions() -> dict[str, str]:
    """Return the versions of the libraries that measure, without importing them."""
    found = {}
    for name in VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _cached(path: Path, device: Device) -> Calibration | None:
    """Return what the cache holds; a file that cannot be read or is of something else counts as none."""
    try:
        known = Calibration.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    is_same = known.device == device and known.versions == versions()
    return known if is_same and known.calibration_version == CALIBRATION_VERSION else None


def _write(path: Path, text: str) -> None:
    """Put a file in place in one step: a reader finds the old text, the new one, or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        raise NotWritable(path, str(error.strerror)) from error


def measured_apart(device: Device, timeout_s: float = MEASURE_SECONDS) -> Calibration:
    """Measure a device in a process of its own and return the result."""
    began = time.monotonic()
    threads = device.units if device.kind is DeviceKind.CPU else 1
    with tempfile.TemporaryDirectory(prefix="kernelwright-", ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", "kernelwright.hardware.calibrate", "--measure"],
            env=child_environment(os.environ, Path(kernelwright.__file__).parents[1], Path(home), threads),
            cwd=home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(device.model_dump_json(), timeout_s)
        except subprocess.TimeoutExpired as error:
            raise CalibrationFailed(device.title, f"no result within {timeout_s:g} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode:
        raise CalibrationFailed(device.title, _last_words(errors) or f"exit code {process.returncode}")
    try:
        measured = Measured.model_validate_json(out.splitlines()[-1])
    except (IndexError, ValidationError) as error:
        raise CalibrationFailed(device.title, f"its process printed {out[-200:]!r}") from error
    return Calibration(
        device=device,
        ceilings=derived(measured),
        measured=measured,
        versions=versions(),
        at=datetime.now(UTC),
        seconds=time.monotonic() - began,
    )


def _last_words(errors: str) -> str:
    """Return the line that names an exception, else the last one: CUDA puts advice after its message."""
    lines = errors.strip().splitlines()
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (named or lines or [""])[-1].rstrip(".")


def _measure(device: Device) -> Measured:
    """Measure in this process, which from here on holds torch and a device context."""
    if device.kind is DeviceKind.CPU:
        from kernelwright.hardware.cpu_streams import measure_cpu

        return measure_cpu(device)
    from kernelwright.hardware.gpu_streams import measure_gpu

    return measure_gpu(device)


def main(arguments: Sequence[str]) -> None:
    """Measure the device on stdin, or the one named, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m kernelwright.hardware.calibrate", description=__doc__)
    parser.add_argument("--device", default="cpu:0", help="kind and index, such as cuda:0")
    parser.add_argument(
        "--measure", action="store_true", help="read a device on stdin, print points; our own child"
    )
    given = parser.parse_args(arguments)
    if given.measure:
        sys.stdout.write(_measure(Device.model_validate_json(sys.stdin.read())).model_dump_json() + "\n")
        return
    known = {f"{device.kind.value}:{device.index}": device for device in devices()}
    if given.device not in known:
        parser.error(f"no device {given.device!r} here; known: {', '.join(known)}")
    with DeviceLock(known[given.device]):
        sys.stdout.write(measured_apart(known[given.device]).model_dump_json() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

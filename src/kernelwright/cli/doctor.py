"""`kernelwright doctor`."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from kernelwright.cli.screen import Answer, HomeOption, JsonFlag, err, kernelwright_home, out, print_json
from kernelwright.core.device import Ceilings
from kernelwright.core.environment import tool_environment
from kernelwright.report.catalogue import BackendRow, backend_rows

COMPILERS = ("g++", "clang++", "nvcc", "hipcc")
LIBRARIES = (
    "torch",
    "triton",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-sanitizer-api",
    "cuda-bindings",
    "transformers",
    "pydantic-ai-slim",
    "matplotlib",
    "mcp",
)


class Finding(Answer):
    """One thing doctor looked at."""

    name: str
    """What was looked for."""
    found: bool
    """Whether it is there."""
    detail: str
    """Version, path, or how to get it."""


class CalibrationRow(Answer):
    """What one device was measured to reach."""

    device: str
    """Kind, number and name."""
    ceilings: Ceilings
    """Fixed costs, bandwidths and matrix rates."""
    disagreements: list[str]
    """Figures more than 15 % away from what the data sheet lets one expect."""


class DoctorAnswer(Answer):
    """What `doctor --json` prints."""

    interpreter: str
    """Python's version and path."""
    devices: list[Finding]
    """CPU and GPUs with their drivers."""
    compilers: list[Finding]
    """Compilers on PATH."""
    libraries: list[Finding]
    """Python packages, core and optional."""
    backends: list[BackendRow]
    """Each language: usable, or what is missing and how to get it."""
    calibration: list[CalibrationRow]
    """Measured ceilings per device; empty unless asked for with --calibrate."""
    ready: bool
    """Whether at least one language beyond the baselines can be used."""


def _devices() -> list[Finding]:
    from kernelwright.hardware.detect import devices

    found = [
        Finding(
            name=f"{device.kind.value}:{device.index}",
            found=True,
            detail=f"{device.name}, {device.arch}, {device.memory_bytes / 2**30:.0f} GiB, driver {device.driver}",
        )
        for device in devices()
    ]
    if not any(item.name.startswith(("cuda", "rocm")) for item in found):
        found.append(
            Finding(
                name="gpu",
                found=False,
                detail="no GPU driver answers; kernels run on the CPU. For NVIDIA install the driver (nvidia-smi).",
            )
        )
    return found


def _compiler(name: str) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding(name=name, found=False, detail="not on PATH")
    said = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(
            [path, "--version"],
            env=tool_environment(os.environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=30,
            check=False,
        ).stdout
    lines = [line for line in said.splitlines() if line.strip()] or ["version unknown"]
    words = next((line for line in lines if "release" in line), lines[0])
    return Finding(name=name, found=True, detail=f"{words.strip()} ({path})")


def _library(name: str) -> Finding:
    try:
        return Finding(name=name, found=True, detail=version(name))
    except PackageNotFoundError:
        return Finding(name=name, found=False, detail=f"pip install {name}")


def _calibration(home: Path) -> list[CalibrationRow]:
    """Measure every device afresh; the result is kept for floors and rankings."""
    from kernelwright.hardware.calibrate import ceilings
    from kernelwright.hardware.detect import devices
    from kernelwright.hardware.peaks import peak

    rows = []
    for device in devices():
        err().print(f"calibrating {device.title}", markup=False)
        found = ceilings(device, home, fresh=True)
        rows.append(
            CalibrationRow(
                device=device.title, ceilings=found.ceilings, disagreements=found.disagreements(peak(device))
            )
        )
    return rows


def doctor(
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure what each device can do, afresh.")
    ] = False,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """Check interpreter, devices, compilers and every language; say what is missing and how to get it."""
    rows = backend_rows()
    answer = DoctorAnswer(
        interpreter=f"Python {sys.version.split()[0]} ({sys.executable})",
        devices=_devices(),
        compilers=[_compiler(name) for name in COMPILERS],
        libraries=[_library(name) for name in LIBRARIES],
        backends=rows,
        calibration=_calibration(kernelwright_home(home)) if calibrate else [],
        ready=any(row.usable and row.name not in ("eager", "compiled") for row in rows),
    )
    if as_json:
        print_json(answer)
        return
    console = out()
    console.print(answer.interpreter)
    groups = {"devices": answer.devices, "compilers": answer.compilers, "libraries": answer.libraries}
    for title, findings in groups.items():
        console.print(f"\n{title}", style="bold")
        for item in findings:
            mark = ("ok", "green") if item.found else ("--", "yellow")
            console.print(Text.assemble("  ", mark, f" {item.name:17} {item.detail}"))
    console.print("\nbackends", style="bold")
    for row in rows:
        detail = row.detail if row.usable else f"{row.detail}. {row.remedy}"
        mark = ("ok", "green") if row.usable else ("no", "red")
        console.print(Text.assemble("  ", mark, f" {row.name:17} {detail}"))
    for measured in answer.calibration:
        _print_calibration(measured)
    console.print(f"\n{'Ready.' if answer.ready else 'No language can be used yet; see above.'}")


def _print_calibration(row: CalibrationRow) -> None:
    console, found = out(), row.ceilings
    console.print(Text.assemble("\n", ("measured", "bold"), f" {row.device}"))
    for name, line in (("copy", found.copying), ("read", found.reading)):
        console.print(f"  {name:17} {line.rate / 1e9:.1f} GB/s beyond {line.fixed_us:.2f} us")
    for name, rate in found.flops.items():
        console.print(f"  {name + ' products':17} {rate / 1e12:.3f} TFLOP/s")
    for words in row.disagreements:
        console.print(f"  {words}", style="yellow")

"""PyTorch's eager mode: the baseline everybody knows, a candidate of a trusted origin."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.backends._baseline import (
    Calls,
    closures,
    function_of,
    missing_entry,
    torch_availability,
)
from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case
from kernelwright.core.ports import Availability, BuildResult
from kernelwright.core.verdict import Status

SUMMARY = "PyTorch eager: the baseline"
EXTENSION = ".py"
TIER = "B"
NOTES = "A file with `kernel_fn(inputs..., scalars...)` that returns the outputs. Only for baselines."


def available() -> Availability:
    """Tell whether torch is installed, without importing it."""
    return torch_availability()


def fingerprint() -> str:
    """Return what decides the behaviour besides the source."""
    return torch_availability().detail


def check(source: str) -> str | None:
    """Return why the source is refused, or None."""
    return missing_entry(source)


def build(source: str, values: Mapping[str, ParamValue], folder: Path) -> BuildResult:
    """Write the source as the artefact: there is nothing to compile and nothing to choose."""
    if values:
        return BuildResult(status=Status.BUILD_FAILED, log=f"eager has no parameters, given {sorted(values)}")
    (folder / "kernel.py").write_text(source)
    return BuildResult(status=Status.ACCEPTED, artefact="kernel.py")


def bind(artefact: Path, cases: Sequence[Case], calls: Calls, device: str = "cpu") -> list[Callable[[], Any]]:
    """Return one closure per call, each returning the outputs as tensors."""
    return closures(function_of(artefact.read_text()), cases, calls, device)

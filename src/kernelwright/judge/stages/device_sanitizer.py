"""The sanitizer stage on an NVIDIA GPU: compute-sanitizer over small odd cases, one tool after the other."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from kernelwright.core.case import Case, Distribution
from kernelwright.core.environment import child_environment
from kernelwright.core.errors import BackendUnavailable
from kernelwright.core.messages.runner import Call, DeviceJob
from kernelwright.core.verdict import Status
from kernelwright.judge.children import PACKAGE_ROOT, Lost
from kernelwright.judge.execution import collect, compile_cases
from kernelwright.judge.stages.bench import Bench, Failure, Found

TOOLS: dict[str, tuple[str, ...]] = {
    # The driver's own bindings ask for functions it does not have: refused calls of its interface are no finding.
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": (),
    "initcheck": (),
}
"""The tools, and what each is told besides."""
PLACES = ("/usr/local/cuda/bin/compute-sanitizer",)
FOUND = 77
"""Exit code we ask for when something is found."""
TOOL_SECONDS = 120.0
REPORT_LINES = 4


def program() -> str | None:
    """Return where compute-sanitizer is."""
    return shutil.which("compute-sanitizer") or next((path for path in PLACES if Path(path).exists()), None)


def sanitize_plans(bench: Bench, cases: list[Case]) -> Found:
    """Run cases of a tier-A candidate under every tool."""
    tool = program()
    if tool is None:
        raise BackendUnavailable(
            bench.candidate.backend, "compute-sanitizer for `ship`", "Install the CUDA toolkit's sanitizer."
        )
    device, builds = bench.problem.device, bench.builds
    try:
        plans = compile_cases(bench.candidate, cases, device, builds)
    except Lost as lost:
        return 0, Failure(lost.status, lost.reason)
    job = DeviceJob(
        index=device.index,
        folder=collect(bench.candidate, cases, device, builds, bench.home),
        cases=tuple(cases),
        calls=tuple(Call(case=number, regions={}) for number in range(len(cases))),
        plans=tuple(plans),
        input_bytes=(0,),
        output_bytes=0,
    )
    with tempfile.TemporaryDirectory(dir=bench.home) as folder:
        (Path(folder) / "job.json").write_text(job.model_dump_json())
        _write_inputs(bench, cases, Path(folder) / "inputs")
        for checked, name in enumerate(TOOLS, start=1):
            if failure := _run([tool, *TOOLS[name], "--tool", name], Path(folder)):
                return checked * len(cases), failure
    return len(TOOLS) * len(cases), None


def _write_inputs(bench: Bench, cases: list[Case], path: Path) -> None:
    with path.open("wb") as file:
        for case in cases:
            drawn = bench.op.make_inputs(case, Distribution.SIGNED, bench.seed)
            for spec in case.inputs:
                kind = drawn[spec.name].dtype
                storage = torch.zeros(spec.storage_elements, dtype=kind, device="cpu")
                if spec.numel:
                    storage.as_strided(spec.shape, spec.element_strides, spec.offset).copy_(drawn[spec.name])
                file.write(storage.view(torch.uint8).numpy().tobytes())


def _run(command: list[str], folder: Path) -> Failure | None:
    """Return what one tool found."""
    worker = [sys.executable, "-P", "-s", "-m", "kernelwright.worker.sanitized", "job.json", "inputs"]
    environment = child_environment(os.environ, PACKAGE_ROOT, folder, 1)
    try:
        done = subprocess.run(
            [*command, "--error-exitcode", str(FOUND), "--print-limit", "3", *worker],
            cwd=folder,
            env={**environment, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Failure(Status.TIMED_OUT, f"no answer from {command[-1]} within {TOOL_SECONDS:.0f} s")
    lines = [line.strip("= ") for line in done.stdout.splitlines() if line.startswith("=====")]
    told = "\n".join([line for line in lines if line and "COMPUTE-SANITIZER" not in line][:REPORT_LINES])
    if done.returncode == FOUND:
        return Failure(Status.SANITIZER, f"{command[-1]}: {told}")
    if done.returncode != 0:
        words = (told or done.stderr[-300:]).strip()
        return Failure(Status.CRASHED, f"under {command[-1]}, code {done.returncode}: {words}")
    return None

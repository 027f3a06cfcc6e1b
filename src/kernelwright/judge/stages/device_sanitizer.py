"""The sanitizer stage on an NVIDIA GPU: compute-sanitizer over small odd cases, its tools side by side."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from kernelwright.backends._compute_sanitizer import program
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
FOUND = 77
"""Exit code we ask for when something is found."""
TOOL_SECONDS, POLL_SECONDS = 120.0, 0.02
"""How long each may take: on the node of an H200 it imports torch for 12 to 20 s first, so they do it at once."""
REPORT_LINES = 4
GUARD = """import os, subprocess, sys, threading
def watch():
    sys.stdin.buffer.read()
    os.killpg(0, 9)
threading.Thread(target=watch, daemon=True).start()
code = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL).returncode
os._exit(code if code >= 0 else 128 - code)
"""
"""A tool has a session of its own, so that all it starts can be ended. The leader of that session does it, too, when
its input closes at the other end: the target of a tool does not outlive a judge that is killed."""


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
        checked, failure = watched(tool, Path(folder))
    return checked * len(cases), failure


def watched(tool: str, folder: Path) -> tuple[int, Failure | None]:
    """Return how many tools had their say on the job in a folder, and what the first of them that found anything says.

    First in the order of the list, not of their ends: the same candidate fails for the same reason every time.
    """
    names = tuple(TOOLS)
    heard, failure = _heard(tool, names, folder)
    if failure is None or failure.status is not Status.CRASHED:
        return heard, failure
    # All at once may have been too many for the device's memory: from here on each has it to itself.
    for place in range(heard - 1, len(names)):
        _, failure = _heard(tool, names[place : place + 1], folder)
        if failure:
            return place + 1, failure
    return len(names), None


def _heard(tool: str, names: Sequence[str], folder: Path) -> tuple[int, Failure | None]:
    """Have tools look at the same time; return how many were heard, and what the last of them found, if anything."""
    with ExitStack() as stack:
        running = [stack.enter_context(_started(tool, name, folder)) for name in names]
        deadline = time.monotonic() + len(names) * TOOL_SECONDS
        for place, one in enumerate(running, start=1):
            if failure := one.finding(deadline):
                return place, failure
    return len(names), None


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


@dataclass(frozen=True)
class _Tool:
    """A tool at work on the job."""

    name: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    complained: IO[bytes]

    def finding(self, deadline: float) -> Failure | None:
        """Wait for it, and return what it found."""
        while not os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            if time.monotonic() >= deadline:
                return Failure(Status.TIMED_OUT, f"no answer from {self.name} within {TOOL_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        if (code := self.ended()) == 0:
            return None
        lines = [line.strip("= ") for line in _words(self.said).splitlines() if line.startswith("=====")]
        told = "\n".join([line for line in lines if line and "COMPUTE-SANITIZER" not in line][:REPORT_LINES])
        if code == FOUND:
            return Failure(Status.SANITIZER, f"{self.name}: {told}")
        words = (told or _words(self.complained)[-300:]).strip()
        return Failure(Status.CRASHED, f"under {self.name}, code {code}: {words}")

    def ended(self) -> int:
        """End it with all it started, and return its exit code. Until it is waited for, its number is nobody else's."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()


@contextmanager
def _started(tool: str, name: str, folder: Path) -> Iterator[_Tool]:
    """Start one tool; with it everything it started ends."""
    worker = [sys.executable, "-P", "-s", "-m", "kernelwright.worker.sanitized", "job.json", "inputs"]
    options = [*TOOLS[name], "--tool", name, "--error-exitcode", str(FOUND), "--print-limit", "3"]
    environment = child_environment(os.environ, PACKAGE_ROOT, folder, 1)
    with tempfile.TemporaryFile(dir=folder) as said, tempfile.TemporaryFile(dir=folder) as complained:
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-c", GUARD, tool, *options, *worker],
            cwd=folder,
            env={**environment, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=complained,
            start_new_session=True,
        )
        running = _Tool(name, process, said, complained)
        with process:
            try:
                yield running
            finally:
                running.ended()


def _words(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")

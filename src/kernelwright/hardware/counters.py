"""Hardware counters of exactly the launches that were judged: same kernels, same shapes, types and strides.

1. A folder is laid out: the compiled kernels, the plan, the case, the inputs.
2. `worker/profiled` is started under Nsight Compute with the device's lock held. It warms up, then brackets a few
   calls; nothing else is profiled. Metrics the installed version does not have are left out and listed.
3. The table is parsed strictly: every launch of the plan, as often as it was called, or it is no result.
4. Per launch the median over the calls; over the launches sums, or means by time. One result per code, case, device
   and profiler is kept on disk and never measured again.

Where counters cannot be had, the profile says why in one line, and `kernel_times` still tells who takes the time.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

import kernelwright
from kernelwright.core.case import Case
from kernelwright.core.counters import (
    TIME,
    CounterProfile,
    KernelCounters,
    NoCounters,
    middle,
    of_call,
    shares,
)
from kernelwright.core.device import Device
from kernelwright.core.environment import child_environment, tool_environment
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.messages.profiler import ORDER, TRACE, Steady, SteadyKernel, Trace
from kernelwright.core.plan import Launch, LaunchPlan, kernel_unit
from kernelwright.hardware import ncu
from kernelwright.hardware.bottleneck_rules import COUNTERS
from kernelwright.hardware.lock import DeviceLock

FORMAT = 1
"""Part of the cache's key: raised whenever the same launches would give other numbers."""
TOOL_SECONDS = 60.0
"""Asking the profiler for its version or its metrics takes about five."""
PROFILE_SECONDS = 240.0
WORDS = 4000
"""Bytes of what a process printed last that are looked at."""
WANTED = (
    TIME,
    *COUNTERS,
    *("l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct", "launch__registers_per_thread"),
)
REFUSALS = 6
"""Times a metric that is refused by name is left out and the rest tried again: one is named at a time."""
"""What every rule reads, and a little for people."""
Draw = Callable[[Path], Mapping[str, str]]


@dataclass(frozen=True)
class Workload:
    """A call to be profiled: what was judged, to the byte."""

    case: Case
    plan: LaunchPlan
    units: Mapping[str, tuple[Path, Path]]
    """Compiled kernels by the start of their unit's hash: binary and facts."""
    device: Device
    draw: Draw | None = None
    """Puts files with the storage of inputs into a folder and names them; None has floats drawn on the device."""

    @property
    def launches(self) -> list[Launch]:
        """Return the launches that are made: those with blocks."""
        return [launch for launch in self.plan.launches if math.prod(launch.grid)]

    def key(self, tool: str) -> str:
        """Return what decides a profile: code, workload, device and profiler."""
        code = {
            name: [digest(binary.read_bytes()), digest(facts.read_bytes())]
            for name, (binary, facts) in self.units.items()
        }
        plan = self.plan.model_dump(mode="json")
        wanted = sorted(WANTED)
        return digest(canonical_json([FORMAT, tool, wanted, self.case.hash, plan, code, self.device.hash]))


@dataclass(frozen=True)
class Profiler:
    """Where profiles are kept and how they are made."""

    cache: Path
    """Folder of the profiles."""
    show: Callable[[str], None] = field(default=lambda _: None)
    tool: Path | None = None
    """The profiler; None looks for it."""
    lock: AbstractContextManager[object] | None = None
    """What keeps others off the device; None takes the device's own lock."""
    keep: Path | None = None
    """Where the profiler's own output is left, for people."""

    def profile(self, work: Workload) -> CounterProfile:
        """Return the counters of a workload, from the cache if they were ever read, else by profiling it once."""
        tool = self.tool or ncu.found()
        if tool is None:
            remedy = "Install Nsight Compute (it comes with the CUDA toolkit) or put ncu on PATH."
            return lacking(work.case, NoCounters.NOT_INSTALLED, f"ncu is not installed. {remedy}")
        version = ncu.version_in(_output([str(tool), "--version"]))
        path = self.cache / f"{work.key(version)}.json"
        if known := cached(path):
            return known
        self.show(f"reading the counters of {work.case.label}")
        with self.lock or DeviceLock(work.device, show=self.show):
            started = time.monotonic()
            found = self._profiled(work, tool, version)
            found = found.model_copy(update={"seconds": time.monotonic() - started})
        if found.lack is NoCounters.NONE:
            write_whole(path, found.model_dump_json())
        return found

    def _profiled(self, work: Workload, tool: Path, version: str) -> CounterProfile:
        metrics = ncu.available(WANTED, self._offered(work, tool, version))
        with tempfile.TemporaryDirectory(prefix="kernelwright-counters-") as scratch:
            folder = Path(scratch)
            order = lay_out(work, folder)
            # Which suffixes there are is not listed: what it refuses by name is left out.
            for _ in range(REFUSALS):
                text, lack = self._table(tool, metrics, folder)
                refused = ncu.refused_metrics(text, metrics) if lack is not None else []
                if not refused:
                    break
                metrics = [name for name in metrics if name not in refused]
            if self.keep is not None:
                self.keep.write_text(text, encoding="utf-8")
        if lack is not None:
            return lacking(work.case, *lack)
        try:
            rows = [ncu.Row(row.kernel, ncu.renamed(row.metrics)) for row in ncu.parse(text)]
            kernels = aggregated(rows, len(work.launches), order.calls)
        except ncu.BadOutput as error:
            return lacking(work.case, NoCounters.FAILED, f"ncu's output cannot be used: {error}")
        whole = of_call(kernels)
        return CounterProfile(
            case_hash=work.case.hash,
            label=work.case.label,
            tool=f"ncu {version}",
            calls=order.calls,
            kernels=tuple(kernels),
            metrics=whole,
            missing=tuple(name for name in WANTED if name not in whole),
        )

    def _offered(self, work: Workload, tool: Path, version: str) -> frozenset[str]:
        """Return the metrics of this version on this kind of device; asked once, it takes seconds."""
        path = self.cache / f"offered-{digest(canonical_json([version, work.device.arch]))[:16]}.txt"
        with suppress(OSError):
            return ncu.offered_in(path.read_text())
        text = _output([str(tool), "--query-metrics"])
        if ncu.offered_in(text):
            write_whole(path, text)
        return ncu.offered_in(text)

    def _table(
        self, tool: Path, metrics: Sequence[str], folder: Path
    ) -> tuple[str, tuple[NoCounters, str] | None]:
        """Return what the profiler printed, and why it is no table if it is none."""
        log = folder / "ncu.log"
        log.unlink(missing_ok=True)
        code, words = run_apart(ncu.command(tool, metrics, log, launcher(folder)), folder, PROFILE_SECONDS)
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        if code == 0 and f'"{ncu.FIRST_COLUMN}",' in text:
            return text, None
        return f"{text}\n{words}", ncu.fault(f"{text}\n{words}", code, words)


def kernel_times(work: Workload, show: Callable[[str], None] = lambda _: None) -> CounterProfile:
    """Return who takes the time by torch's own profiler: no counters, but no permission either."""
    with (
        DeviceLock(work.device, show=show),
        tempfile.TemporaryDirectory(prefix="kernelwright-times-") as scratch,
    ):
        folder = Path(scratch)
        order = lay_out(work, folder, tracer="torch")
        code, words = run_apart(launcher(folder), folder, PROFILE_SECONDS)
        try:
            trace = Trace.model_validate_json((folder / TRACE).read_text())
            rows = [ncu.Row(one.name, {TIME: 1e3 * one.time_us}) for one in trace.kernels]
            kernels = aggregated(rows, len(work.launches), order.calls)
        except (OSError, ValidationError, ncu.BadOutput) as error:
            reason = f"torch's profiler has no times (exit code {code}): {ncu.in_a_line(words) or error}"
            return lacking(work.case, NoCounters.FAILED, reason)
    return CounterProfile(
        case_hash=work.case.hash,
        label=work.case.label,
        tool=trace.tool,
        calls=order.calls,
        kernels=tuple(kernels),
        missing=WANTED,
    )


def aggregated(rows: Sequence[ncu.Row], launches: int, calls: int) -> list[KernelCounters]:
    """Return every launch of a call with the median of its counters; refuses rows that are not calls x launches."""
    if not launches or len(rows) != launches * calls:
        raise ncu.BadOutput(
            f"{len(rows)} kernels were seen where {calls} calls of {launches} launches were made"
        )
    places = [rows[place::launches] for place in range(launches)]
    for seen in places:
        if len({row.kernel for row in seen}) > 1:
            raise ncu.BadOutput(
                f"the calls do not launch the same kernels: {seen[0].kernel[:60]!r} and others"
            )
        if any(TIME not in row.metrics for row in seen):
            raise ncu.BadOutput(f"no time of {seen[0].kernel[:60]!r}")
    found = [middle([row.metrics for row in seen]) for seen in places]
    times = [one[TIME] / 1e3 for one in found]
    return [
        KernelCounters(name=seen[0].kernel, time_us=time_us, share=share, metrics=metrics)
        for seen, time_us, share, metrics in zip(places, times, shares(times), found, strict=True)
    ]


def lay_out(work: Workload, folder: Path, tracer: str = "outside") -> Steady:
    """Put everything the launcher needs into a folder, and return its order."""
    keys = [kernel_unit(launch, work.case).hash[:16] for launch in work.plan.launches]
    for key in dict.fromkeys(keys):
        for source, suffix in zip(work.units[key], (".cubin", ".json"), strict=True):
            shutil.copyfile(source, folder / f"{key}{suffix}")
    order = Steady.model_validate(
        {
            "case": work.case,
            "plan": work.plan,
            "kernels": tuple(SteadyKernel(binary=f"{key}.cubin", facts=f"{key}.json") for key in keys),
            "device": work.device.index,
            "inputs": dict(work.draw(folder)) if work.draw else {},
            "tracer": tracer,
        }
    )
    (folder / ORDER).write_text(order.model_dump_json())
    return order


def launcher(folder: Path) -> list[str]:
    """Return the command of the launcher of a folder."""
    return [sys.executable, "-P", "-s", "-m", "kernelwright.worker.profiled", str(folder)]


def run_apart(words: Sequence[str], folder: Path, timeout_s: float) -> tuple[int | None, str]:
    """Run a command with nothing of ours in its environment; return exit code (None if stopped) and words."""
    root = Path(kernelwright.__file__).parents[1]
    with (folder / "words").open("w+b") as log:
        process = subprocess.Popen(
            list(words),
            # The language of the numbers: a German profiler writes 1.234,5.
            env=child_environment(os.environ, root, folder, 1) | {"LC_ALL": "C.UTF-8"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout=timeout_s)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        return code, log.read()[-WORDS:].decode(errors="replace")


def _output(words: Sequence[str]) -> str:
    """Return what a short question to the profiler is answered; empty if it is not."""
    with (
        suppress(OSError, subprocess.TimeoutExpired),
        tempfile.TemporaryDirectory(
            prefix="kernelwright-counters-"
        ) as home,  # it keeps files of its own there
    ):
        asked = subprocess.run(
            words,
            env=tool_environment(os.environ) | {"LC_ALL": "C.UTF-8", "HOME": home},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TOOL_SECONDS,
            check=False,
        )
        return asked.stdout
    return ""


def lacking(case: Case, lack: NoCounters, reason: str) -> CounterProfile:
    """Return a profile that says why there are no counters."""
    return CounterProfile(case_hash=case.hash, label=case.label, lack=lack, reason=reason)


def cached(path: Path) -> CounterProfile | None:
    """Return the profile kept in a file, which costs nothing again; None if there is none."""
    with suppress(OSError, ValidationError):
        return CounterProfile.model_validate_json(path.read_text()).model_copy(update={"seconds": 0.0})
    return None


def write_whole(path: Path, text: str) -> None:
    """Put a profile in place whole; a disk that is full costs another profile, not the run."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(path)

"""What is known of a model on a GPU that is not here: floors by the data sheet, and whether the seeds compile for it.

1. The GPU is a row of the table of peaks; nothing of it is measured, so nothing here is a time.
2. The model is captured where it is: its problems are the same everywhere, cases and all.
3. The plan of every seed, and of every kernel written from a captured region, is made for the GPU, and its kernels are
   compiled for its architecture in the builder's sandbox.
"""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Ceiling, Ceilings, Device, DeviceKind
from kernelwright.core.errors import BadInput, ServiceDied
from kernelwright.core.messages.builder import BUILD_REPLY, ENCLOSED, BuildRequest
from kernelwright.core.messages.model import ExtractModel, ModelExtracted
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import PlanFault, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.problem import Problem
from kernelwright.core.region import Extracted
from kernelwright.core.roofline import Work, floor_us
from kernelwright.core.verdict import Status
from kernelwright.engine.offering import LANGUAGES
from kernelwright.engine.own_baseline import PREFIX
from kernelwright.engine.seeds import seed, written_seeds
from kernelwright.engine.service import Child, Show, ask_model
from kernelwright.hardware.detect import usable_cores
from kernelwright.hardware.peaks import Peak, peak, table

LOG = 200
"""Characters of a compiler's words that are told."""


@dataclass(frozen=True)
class Compiled:
    """One seed, compiled for a GPU that is not here."""

    backend: str
    compiles: bool
    words: str
    """How many kernels there are, or why they do not compile."""


@dataclass(frozen=True)
class Planned:
    """One problem of a model on a GPU that is not here."""

    problem: Problem
    floor_us: float
    """Least time of one run of it by the data sheet, nothing fixed added."""
    seeds: tuple[Compiled, ...]

    @property
    def words(self) -> str:
        """Return what was found, language by language, and why one has nothing."""
        told = [f"{one.backend}: {one.words}" for one in self.seeds]
        if self.problem.captured and self.problem.captured.not_plain:
            told.append(f"not written: no plain kernel for {self.problem.captured.not_plain}")
        return "; ".join(told) or "no seed for it"


def gpu_named(name: str, rows: Sequence[Peak] | None = None) -> Peak:
    """Return the GPU that a word such as `h100` or `RTX 4090` means: the first one of the table it fits."""
    known = rows or table()
    wanted = _words(name)
    exactly = [row for row in known if wanted <= _words(" ".join((row.part, *row.names)))]
    loosely = [row for row in known if all(word in row.part.casefold() for word in wanted)]
    if not wanted or not (exactly or loosely):
        parts = ", ".join(row.part for row in known)
        raise BadInput("target_gpu", f"no GPU is called {name!r}", f"Known: {parts}.")
    return (exactly or loosely)[0]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.casefold()))


def is_here(wanted: Peak, devices: Sequence[Device]) -> bool:
    """Tell whether one of the devices is that GPU."""
    return any(found is not None and found.part == wanted.part for found in map(peak, devices))


def device_of(row: Peak) -> Device:
    """Return a GPU as its data sheet describes it."""
    is_nvidia = row.arch.startswith("sm_")
    limits = plugins.load("backends", "triton").SHARED_LIMITS
    return Device(
        kind=DeviceKind.CUDA if is_nvidia else DeviceKind.ROCM,
        name=row.names[0],
        arch=row.arch,
        units=row.units,
        memory_bytes=round(row.memory_gib * 2**30),
        cache_bytes=round(row.cache_mib * 2**20),
        shared_bytes=limits.get(row.arch, 0),
    )


def sheet_ceilings(row: Peak) -> Ceilings:
    """Return ceilings that no run can pass: the data sheet's own, with no fixed cost."""
    stream = Ceiling(fixed_us=0.0, rate=row.bandwidth)
    return Ceilings(copying=stream, reading=stream, flops=row.flops)


def plan(config: RunConfig, row: Peak, show: Show) -> list[Planned]:
    """Return the problems of a model on a GPU that is not here, those with the most work first."""
    assert config.model is not None
    threads = config.threads or usable_cores()
    show(f"capturing {config.model}")
    request = ExtractModel(
        spec=config.model, options=config.model_options(), threads=threads, target=DeviceKind.CUDA.value
    )  # fmt: skip
    found = ask_model(request, show)
    if not isinstance(found, ModelExtracted):
        raise ServiceDied("model", f"answered {type(found).__name__} to ExtractModel")
    device, ceilings = device_of(row), sheet_ceilings(row)
    counts: dict[str, tuple[Problem, Work, int]] = {}
    for one in found.problems:
        if one.chosen and (one.captured or seed(one.op, "eager", Origin.BASELINE)):
            problem = _problem(one, device)
            before = counts.get(problem.hash, (problem, None, 0))[2]
            problem = problem.model_copy(update={"count": before + one.chosen})
            work: Work = plugins.load("ops", one.op).work(one.case)
            if one.captured:  # the op itself knows the bytes only
                work = work.model_copy(update={"flops": one.flops})
            counts[problem.hash] = (problem, work, before + one.chosen)
    floors = [(problem, floor_us(work, ceilings), count) for problem, work, count in counts.values()]
    floors.sort(key=lambda one: -one[1] * one[2])
    return [
        Planned(problem, floor, tuple(_seeds(config, problem, threads, show)))
        for problem, floor, _ in floors[: config.top]
    ]


def _problem(one: Extracted, device: Device) -> Problem:
    """Return a problem of the model on a device; that of a captured region is named by its text."""
    reference = (
        f"{PREFIX}{one.captured.reference_hash}.py#{one.captured.reference_hash}" if one.captured else None
    )
    return Problem(
        op=one.op,
        cases=(one.case,),
        device=device,
        reference=reference,
        captured=one.captured,
        count=one.chosen,
    )


def _seeds(config: RunConfig, problem: Problem, threads: int, show: Show) -> list[Compiled]:
    names = LANGUAGES[problem.device.kind] if config.backend == "auto" else (config.backend,)
    found = [seed(problem.op, name, Origin.AUTHOR) for name in names]
    kernels = [*(one for one in found if one is not None), *written_seeds(problem, names)]
    return [compiled(one, problem, threads, show) for one in kernels]


def compiled(candidate: Candidate, problem: Problem, threads: int, show: Show) -> Compiled:
    """Compile a candidate's kernels for the problem's device, which need not be here."""
    backend, case, arch = candidate.backend, problem.cases[0], problem.device.arch
    if plugins.load("backends", backend).TIER != "A":
        return Compiled(backend, False, "it is no language of GPUs")
    try:
        launches = run_plan(
            parse_plan(candidate.source), case, candidate.values_for(case.hash), problem.device
        ).launches
    except PlanFault as fault:
        return Compiled(backend, False, f"its plan: {fault}")
    units = {unit.hash: unit for unit in (kernel_unit(launch, case) for launch in launches)}
    show(f"compiling {case.label} in {backend} for {arch}")
    child = Child("builder", "kernelwright.worker.builder", threads)
    with tempfile.TemporaryDirectory(prefix="kernelwright-build-") as folder:
        request = BuildRequest(
            backend=backend, source=candidate.source, folder=str(Path(folder)), units=tuple(units.values()), target=arch
        )  # fmt: skip
        try:
            child.send(request)
            child.receive(ENCLOSED, show)
            results = child.receive(BUILD_REPLY, show).results
        except ServiceDied as died:
            return Compiled(backend, False, str(died)[:LOG])
        finally:
            child.close()
    for result in results:
        if result.status is not Status.ACCEPTED:
            words = " ".join(result.log.split())[:LOG]
            return Compiled(backend, False, f"{result.status.value}: {words}")
    return Compiled(backend, True, f"{len(results)} kernel{'s' * (len(results) != 1)}")

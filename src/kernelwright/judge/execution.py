"""How a candidate's cases become a running process: plans and units for tier A on a GPU, one artefact for tier B."""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate
from kernelwright.core.case import Case
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.messages.runner import DeviceJob
from kernelwright.core.plan import KernelUnit, LaunchPlan, kernel_unit
from kernelwright.core.plan_language import PlanFault, parse_plan
from kernelwright.core.plan_run import PlanDeclined, run_plan
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import Arena
from kernelwright.judge.builds import Builds
from kernelwright.judge.children import Lost, Runner, Service
from kernelwright.judge.runners import ForkedRunner, Keeper, launched

LOAD_SECONDS = 60.0


def launches_plans(candidate: Candidate, device: Device) -> bool:
    """Tell whether the trusted launcher runs this candidate; on a CPU, tier A is interpreted in a runner."""
    return plugins.load("backends", candidate.backend).TIER == "A" and device.kind is not DeviceKind.CPU


def is_interpreted(candidate: Candidate, device: Device) -> bool:
    """Tell whether an interpreter stands in for the GPU this candidate needs: it is checked, and never timed."""
    backend = plugins.load("backends", candidate.backend)
    return (
        device.kind is DeviceKind.CPU
        and hasattr(backend, "interprets")
        and backend.interprets(candidate.source)
    )


def left_out(candidate: Candidate, case: Case, device: Device) -> str | None:
    """Return why a case cannot be put to a candidate here (bf16 or a large one under an interpreter), or None."""
    if not is_interpreted(candidate, device):
        return None
    reason: str | None = plugins.load("backends", candidate.backend).interpretable(case)
    return reason


def plan_for(candidate: Candidate, case: Case, device: Device) -> LaunchPlan:
    """Return what a tier-A candidate wants launched for a case; a fault or a refusal is the candidate's."""
    try:
        return run_plan(parse_plan(candidate.source), case, candidate.values_for(case.hash), device)
    except PlanDeclined as declined:
        raise Lost(Status.UNSUPPORTED, f"the plan declined {case.label}: {declined}") from declined
    except PlanFault as fault:
        raise Lost(Status.REFUSED, f"the plan fails on {case.label}: {fault}") from fault


def units_of(plan: LaunchPlan, case: Case) -> list[KernelUnit]:
    """Return the kernels a plan launches."""
    return [kernel_unit(launch, case) for launch in plan.launches]


def compile_cases(
    candidate: Candidate, cases: Sequence[Case], device: Device, builds: Builds
) -> list[LaunchPlan]:
    """Return the plan of each case once all its kernels are compiled; the first failure is raised."""
    plans = [plan_for(candidate, case, device) for case in cases]
    units = [unit for plan, case in zip(plans, cases, strict=True) for unit in units_of(plan, case)]
    results = builds.get_units(candidate, units, device.arch)
    for plan, case in zip(plans, cases, strict=True):
        for unit in units_of(plan, case):
            if (found := results[unit.hash]).status is not Status.ACCEPTED:
                raise Lost(found.status, f"{unit.kernel} for {case.label}: {found.log}")
    return plans


def compile_ahead(
    candidate: Candidate, cases: Sequence[Case], device: Device, builds: Builds, most: int = sys.maxsize
) -> None:
    """Start compiling for cases later stages will ask for, on other cores, while the device works."""
    units: list[KernelUnit] = []
    for case in cases:
        with suppress(Lost):  # what a plan declines or fails on is told by the stage that asks for it
            units += units_of(plan_for(candidate, case, device), case)
    builds.get_ahead(candidate, units, device.arch, most)


def collect(candidate: Candidate, cases: Sequence[Case], device: Device, builds: Builds, home: Path) -> str:
    """Return a folder that holds every compiled kernel the cases need."""
    folder = tempfile.mkdtemp(dir=home, prefix="units-")
    for case in cases:
        builds.collect_units(
            candidate, units_of(plan_for(candidate, case, device), case), device.arch, Path(folder)
        )
    return folder


def device_job(candidate: Candidate, arena: Arena, device: Device, builds: Builds, home: Path) -> DeviceJob:
    """Return the job of a GPU runner over an arena."""
    plans = compile_cases(candidate, arena.cases, device, builds)
    return DeviceJob(
        index=device.index,
        folder=collect(candidate, arena.cases, device, builds, home),
        cases=arena.cases,
        calls=arena.calls,
        plans=tuple(plans),
        input_bytes=(arena.inputs.nbytes,),
        output_bytes=arena.outputs.nbytes,
    )


def open_runner(
    candidate: Candidate,
    arena: Arena,
    device: Device,
    builds: Builds,
    nursery: Service,
    home: Path,
    keeper: Keeper | None = None,
) -> Runner:
    """Return a runner that is ready for every call of the arena: a fresh one, or the launcher of a keeper."""
    runner: Runner
    if launches_plans(candidate, device):
        begin = keeper.lend if keeper else launched
        runner = begin(nursery, device_job(candidate, arena, device, builds, home), arena, home)
    else:
        backend = plugins.load("backends", candidate.backend)
        for case in arena.cases if backend.TIER == "A" else ():
            plan_for(
                candidate, case, backend.INTERPRETED_AS
            )  # a plan's refusal is told apart from a kernel's
        result, artefact = builds.get(candidate, candidate.values_for(arena.cases[0].hash))
        if artefact is None:
            raise Lost(result.status, result.log)
        runner = ForkedRunner(nursery, artefact, candidate.backend, arena, home)
    try:
        runner.ready(LOAD_SECONDS)
    except Lost as lost:
        runner.__exit__(type(lost))
        raise
    return runner

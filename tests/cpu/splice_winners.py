"""Seeds as winners: built here, certified by nobody, good enough to be put into a model."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.backends import cpp
from kernelwright.core import plugins
from kernelwright.core.candidate import Origin
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.frozen import digest
from kernelwright.core.manifest import Certificate, Manifest
from kernelwright.core.messages.model import Winner, WinnerUnit
from kernelwright.core.plan import kernel_unit
from kernelwright.core.plan_language import parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.verdict import JUDGE_VERSION, Profile, Status
from kernelwright.engine.seeds import seed
from kernelwright.hardware.detect import cpu_device
from kernelwright.model.capture import capture
from kernelwright.model.extract import Found, extract
from kernelwright.report import drop_in

CERTIFICATE = Certificate(
    judge_version=JUDGE_VERSION,
    profile=Profile.SHIP,
    status=Status.ACCEPTED,
    baseline="torch eager",
    ratio=1.5,
    ci_low=1.4,
    ci_high=1.6,
    pairs=16,
)


class Normed(nn.Module):
    """A norm between two operations that stay."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(64, eps=1e-6)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x * 2) + 1


def problem_of(model: nn.Module, *inputs: Any, op: str = "rmsnorm") -> Found:
    """Return the one problem of an op in a model."""
    with torch.no_grad():
        found = extract(capture(model, inputs), with_fusions=False)
    (one,) = [one for one in found if one.op == op]
    torch._dynamo.reset()
    return one


def cpp_winner(case: Case, folder: Path, source: str = "") -> Winner:
    """Return the C++ seed of a case's op, or another source, built here."""
    candidate = seed(case.op, "cpp", Origin.AUTHOR)
    assert candidate is not None
    source = source or candidate.source
    folder.mkdir(parents=True)
    built = cpp.build(source, candidate.values_for(case.hash), folder)
    assert (built.status, built.artefact) == (Status.ACCEPTED, "kernel.so"), built.log
    artefact = folder / "kernel.so"
    return Winner(
        problem_hash="p",
        candidate_hash=digest(source),
        backend="cpp",
        case=case,
        artefact=str(artefact),
        artefact_hash=digest(artefact.read_bytes()),
        source=source,
        values=candidate.values_for(case.hash),
        device=cpu_device(),
    )


def gpu_winner(case: Case, backend: str, device: Device, folder: Path) -> Winner:
    """Return the GPU seed of a case's op, compiled for a device that need not be there."""
    candidate = seed(case.op, backend, Origin.AUTHOR)
    assert candidate is not None
    values = candidate.values_for(case.hash)
    plan = run_plan(parse_plan(candidate.source), case, values, device)
    units = []
    for unit in {one.hash: one for one in (kernel_unit(launch, case) for launch in plan.launches)}.values():
        built = plugins.load("backends", backend).compile_unit(candidate.source, unit, device.arch, folder)
        assert built.status is Status.ACCEPTED, built.log
        binary, facts = (folder / f"{unit.hash[:16]}.{kind}" for kind in ("cubin", "json"))
        units.append(
            WinnerUnit(
                key=unit.hash[:16],
                binary=str(binary),
                binary_hash=digest(binary.read_bytes()),
                facts=str(facts),
                facts_hash=digest(facts.read_bytes()),
            )
        )
    return Winner(
        problem_hash="p",
        candidate_hash=candidate.hash,
        backend=backend,
        case=case,
        source=candidate.source,
        values=values,
        plan=plan,
        units=tuple(units),
        device=device,
    )


def written(folder: Path, *winners: Winner) -> Manifest:
    """Write winners as drop-in modules, all with one certificate."""
    return drop_in.write(folder, winners, {winner.candidate_hash: CERTIFICATE for winner in winners})

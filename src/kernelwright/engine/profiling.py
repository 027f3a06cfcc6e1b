"""Counters for the diagnosis: the parents of expansions under a profiler, once each, and single files by hand.

A profile is journalled before anybody is asked, so that a brief stays a function of the tree: a run that was killed
goes on with the same counters. Where the machine refuses them once, nobody asks again in that run.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.case import Case
from kernelwright.core.counters import CounterProfile, NoCounters
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.diagnosis import Diagnosis, Metric
from kernelwright.core.errors import BlobMissing, DeviceBusy
from kernelwright.core.events import Profiled
from kernelwright.core.messages.model import Winner
from kernelwright.core.messages.profiler import CASE, input_file
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node
from kernelwright.engine.asking import cards
from kernelwright.engine.diagnosing import diagnoses_of, metrics_of, telling_case
from kernelwright.engine.judging import Finding
from kernelwright.engine.run import Run
from kernelwright.engine.service import Show
from kernelwright.engine.winners import winner_of
from kernelwright.hardware.calibrate import known_ceilings
from kernelwright.hardware.counters import Profiler, Workload, kernel_times, lacking, run_apart
from kernelwright.store.blobs import Blobs

DRAW_SECONDS = 120.0
BUDGET_SHARE = 0.1
"""Share of a run's time that profiles may take: each takes as long as a verdict."""
FOLDER = "counters"
"""Where profiles are kept, beside the other caches."""


def profile_due(run: Run, problem: Problem) -> Node | None:
    """Return a parent of a pending expansion whose counters are still to be read; None if there is none."""
    if run.config.counters == "off" or problem.device.kind is not DeviceKind.CUDA or run.cache is None:
        return None
    known = [profile for node in run.tree.nodes.values() for profile in node.profiles]
    spent_s = sum(profile.seconds for profile in known)
    if any(profile.lack.is_lasting for profile in known) or spent_s > BUDGET_SHARE * run.config.budget_s:
        return None
    parents = [one.parents[0] for one in run.tree.quests[problem.hash].pending if one.parents]
    nodes = [run.tree.nodes[problem.hash, parent] for parent in dict.fromkeys(parents)]
    return next((node for node in nodes if not node.profiles and _can_be(problem, node)), None)


def _can_be(problem: Problem, node: Node) -> bool:
    """Tell whether a candidate has a certified time and no host code of its own."""
    is_launched = plugins.load("backends", node.candidate.backend).TIER == "A"
    return is_launched and telling_case(problem, node) is not None


def read_counters(run: Run, problem: Problem, node: Node) -> None:
    """Journal the counters of a candidate on the case that has most to win, or why there are none."""
    assert run.cache is not None, "nothing is due without a cache"
    profile = profiled(problem, node, run.folder / "blobs", Profiler(run.cache.parent / FOLDER, run.show))
    if profile.reason:
        run.show(f"no counters: {profile.reason}")
    run.record([Profiled(problem_hash=problem.hash, candidate_hash=node.candidate.hash, profile=profile)])


def profiled(problem: Problem, node: Node, blobs: Path, profiler: Profiler) -> CounterProfile:
    """Return the counters of a judged candidate, of the very artefacts that were judged."""
    case = telling_case(problem, node)
    assert case is not None, "only what has a certified time is profiled"
    try:
        return profiler.profile(workload(winner_of(node, case, problem.device, Blobs(blobs)), problem.device))
    except (BlobMissing, DeviceBusy) as error:
        return lacking(case, NoCounters.FAILED, str(error))


def workload(winner: Winner, device: Device) -> Workload:
    """Return a certified tier-A kernel as a workload."""
    assert winner.plan is not None, "only plans are launched"
    units = {unit.key: (Path(unit.binary), Path(unit.facts)) for unit in winner.units}
    for key, files in units.items():
        if not all(file.is_file() for file in files):
            raise BlobMissing(key, "is not in the store")
    return Workload(winner.case, winner.plan, units, device, lambda folder: drawn(winner.case, folder))


def drawn(case: Case, folder: Path) -> Mapping[str, str]:
    """Have the inputs of a case drawn into a folder, and return the files by input; what is missing is not named."""
    (folder / CASE).write_text(case.model_dump_json())
    run_apart(
        [sys.executable, "-P", "-s", "-m", "kernelwright.judge.drawn", str(folder)], folder, DRAW_SECONDS
    )
    names = {spec.name: input_file(place) for place, spec in enumerate(case.inputs)}
    return {name: file for name, file in names.items() if (folder / file).is_file()}


@dataclass(frozen=True)
class Counted:
    """What is known of one file's time: counters, everything else, and what follows."""

    profile: CounterProfile
    times: CounterProfile | None
    """Who takes the time by torch's profiler, where there are no counters and the file can be launched."""
    metrics: tuple[Metric, ...]
    diagnoses: tuple[Diagnosis, ...]


def counted_file(finding: Finding, blobs: Path, home: Path, show: Show) -> Counted:
    """Return the counters of an accepted file and its diagnosis; without counters, what the rest says."""
    problem = finding.problem
    node = Node(finding.candidate, problem.hash, seq=0, evaluations=[finding.evaluation])
    case = telling_case(problem, node)
    assert case is not None, "only what has a certified time is profiled"
    lack, times = _refusal(problem, node), None
    if lack is not None:
        profile = lacking(case, *lack)
    else:
        profile = profiled(problem, node, blobs, Profiler(home / "cache" / FOLDER, show))
        if profile.lack is not NoCounters.NONE:
            winner = winner_of(node, case, problem.device, Blobs(blobs))
            times = kernel_times(workload(winner, problem.device), show)
    node.profiles.append(profile)
    known = known_ceilings(problem.device, home)
    return Counted(
        profile,
        times,
        metrics_of(problem, node, case, known),
        tuple(diagnoses_of(problem, node, cards(problem, node.candidate.backend), known)),
    )


def _refusal(problem: Problem, node: Node) -> tuple[NoCounters, str] | None:
    """Return why a candidate is not put under a profiler at all."""
    if problem.device.kind is not DeviceKind.CUDA:
        remedy = "The diagnosis below rests on times, the roofline and the source."
        return NoCounters.NOT_SUPPORTED, f"hardware counters are read of NVIDIA GPUs only. {remedy}"
    if not _can_be(problem, node):
        remedy = "Give device code with a plan (.cu, or .py with plan)."
        return (
            NoCounters.HOST_CODE,
            f"the file has host code of its own, which is run confined only. {remedy}",
        )
    return None

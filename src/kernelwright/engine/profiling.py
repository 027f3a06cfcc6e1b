"""Counters for the diagnosis: the parents of expansions under a profiler, once each, and single files by hand.

On a GPU the profiler looks at the trusted launcher. On a CPU the judge itself counts what its runner does: the
candidate is confined there, and the counters are outside. A profile is journalled before anybody is asked, so that a
brief stays a function of the tree: a run that was killed goes on with the same counters. Where the machine refuses them
once, nobody asks again in that run.
"""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.candidate import Origin
from kernelwright.core.case import Case
from kernelwright.core.counters import CounterProfile, NoCounters
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.diagnosis import Diagnosis, Metric
from kernelwright.core.errors import BlobMissing, DeviceBusy
from kernelwright.core.events import Profiled
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.messages.model import Winner
from kernelwright.core.messages.profiler import CASE, input_file
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node
from kernelwright.engine.asking import cards
from kernelwright.engine.diagnosing import diagnoses_of, metrics_of, telling_case
from kernelwright.engine.judging import Finding
from kernelwright.engine.run import Run
from kernelwright.engine.service import JudgeClient
from kernelwright.engine.winners import winner_of
from kernelwright.hardware import perf
from kernelwright.hardware.calibrate import known_ceilings
from kernelwright.hardware.counters import (
    Profiler,
    Workload,
    cached,
    kernel_times,
    lacking,
    run_apart,
    write_whole,
)
from kernelwright.store.blobs import Blobs

DRAW_SECONDS = 120.0
BUDGET_SHARE = 0.1
"""Share of a run's time that profiles may take: each takes as long as a verdict."""
FOLDER = "counters"
"""Where profiles are kept, beside the other caches."""
COUNTING = 1
"""Part of the key of a CPU's profiles: raised whenever the same calls would be counted otherwise."""


def profile_due(run: Run, problem: Problem) -> Node | None:
    """Return a parent of a pending expansion whose counters are still to be read; None if there is none."""
    known_kinds = (DeviceKind.CUDA, DeviceKind.CPU)
    if run.config.counters == "off" or problem.device.kind not in known_kinds or run.cache is None:
        return None
    known = [profile for node in run.tree.nodes.values() for profile in node.profiles]
    spent = [profile.seconds for profile in known]
    # The next one takes as long as the longest did; the first is always worth it.
    if any(profile.is_hopeless for profile in known) or (
        spent and sum(spent) + max(spent) > BUDGET_SHARE * run.config.budget_s
    ):
        return None
    parents = [one.parents[0] for one in run.tree.quests[problem.hash].pending if one.parents]
    nodes = [run.tree.nodes[problem.hash, parent] for parent in dict.fromkeys(parents)]
    return next((node for node in nodes if not node.profiles and _can_be(problem, node)), None)


def _can_be(problem: Problem, node: Node) -> bool:
    """Tell whether a candidate has a certified time and, on a GPU, no host code of its own."""
    if problem.device.kind is DeviceKind.CPU:
        is_countable = node.candidate.origin is not Origin.BASELINE
    else:
        is_countable = plugins.load("backends", node.candidate.backend).TIER == "A"
    return is_countable and telling_case(problem, node) is not None


def read_counters(run: Run, judge: JudgeClient, problem: Problem, node: Node) -> None:
    """Journal the counters of a candidate on the case that has most to win, or why there are none."""
    assert run.cache is not None, "nothing is due without a cache"
    folder = run.cache.parent / FOLDER
    if problem.device.kind is DeviceKind.CPU:
        profile = counted_calls(problem, node, judge, folder)
    else:
        profile = profiled(problem, node, run.folder / "blobs", Profiler(folder, run.show))
    if profile.reason and not profile.metrics:
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


def counted_calls(problem: Problem, node: Node, judge: JudgeClient, cache: Path) -> CounterProfile:
    """Return the counters of a judged candidate on a CPU, from the cache if its calls were ever counted."""
    case, verdict = telling_case(problem, node), node.evaluations[-1]
    assert case is not None, "only what has a certified time is profiled"
    values = digest(canonical_json(node.candidate.values_for(case.hash)))
    code = verdict.artefact_hashes.get(values, node.candidate.hash)
    wanted = [event.name for event in perf.EVENTS]
    where = [problem.device.hash, verdict.environment.get("threads", ""), platform.release()]
    path = cache / f"{digest(canonical_json([COUNTING, wanted, case.hash, code, *where]))}.json"
    if known := cached(path):
        return known
    try:
        found = judge.count(problem, node.candidate, case.hash)
    except DeviceBusy as error:
        return lacking(case, NoCounters.FAILED, str(error))
    if found.metrics and found.lack is not NoCounters.NOT_PERMITTED:  # a permission may be given later
        write_whole(path, found.model_dump_json())
    return found


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


def counted_file(finding: Finding, blobs: Path, home: Path, judge: JudgeClient) -> Counted:
    """Return the counters of an accepted file and its diagnosis; without counters, what the rest says."""
    problem = finding.problem
    node = Node(finding.candidate, problem.hash, seq=0, evaluations=[finding.evaluation])
    case = telling_case(problem, node)
    assert case is not None, "only what has a certified time is profiled"
    folder, lack, times = home / "cache" / FOLDER, _refusal(problem, node), None
    if lack is not None:
        profile = lacking(case, *lack)
    elif problem.device.kind is DeviceKind.CPU:
        profile = counted_calls(problem, node, judge, folder)
    else:
        profile = profiled(problem, node, blobs, Profiler(folder, judge.show))
        if profile.lack is not NoCounters.NONE:
            winner = winner_of(node, case, problem.device, Blobs(blobs))
            times = kernel_times(workload(winner, problem.device), judge.show)
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
    if problem.device.kind not in (DeviceKind.CUDA, DeviceKind.CPU):
        remedy = "The diagnosis below rests on times, the roofline and the source."
        return NoCounters.NOT_SUPPORTED, f"hardware counters are read of NVIDIA GPUs and CPUs only. {remedy}"
    if not _can_be(problem, node):
        remedy = "Give device code with a plan (.cu, or .py with plan)."
        return (
            NoCounters.HOST_CODE,
            f"the file has host code of its own, which is run confined only. {remedy}",
        )
    return None

"""Where inside its kernels a judged file spends its time: copies that record themselves, launched as those are."""

import json
from pathlib import Path
from typing import Any

from kernelwright.core.device import DeviceKind
from kernelwright.core.errors import BlobMissing, DeviceBusy
from kernelwright.core.plan import kernel_unit
from kernelwright.core.timeline import Timeline
from kernelwright.core.tree import Node
from kernelwright.engine.diagnosing import telling_case
from kernelwright.engine.judging import Finding
from kernelwright.engine.profiling import drawn
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.counters import Workload
from kernelwright.hardware.timeline import BadRecords, timeline_of
from kernelwright.store.blobs import Blobs


def timed_inside(finding: Finding, blobs: Path, judge: JudgeClient) -> tuple[Timeline, dict[str, Any]]:
    """Return the timeline of an accepted file on the case that has most to win, and the same as a trace."""
    problem, candidate = finding.problem, finding.candidate
    node = Node(candidate, problem.hash, seq=0, evaluations=[finding.evaluation])
    case = telling_case(problem, node)
    if problem.device.kind is not DeviceKind.CUDA:
        words = "Triton kernels record it on an NVIDIA GPU, and there is none here for this file."
        return Timeline(reason=words), {}
    if case is None:
        return Timeline(
            reason="only an accepted file is recorded; `kernelwright judge` says why it is not."
        ), {}
    built = judge.record(problem, candidate, case.hash)
    if built.plan is None:
        return Timeline(label=case.label, reason=built.reason), {}
    store, units, facts = Blobs(blobs), {}, []
    for launch in built.plan.launches:
        key = kernel_unit(launch, case).hash[:16]
        files = [store.path(built.artefacts[f"{key}{end}"]) for end in (".cubin", ".json")]
        if not all(file.is_file() for file in files):
            raise BlobMissing(key, "is not in the store")
        units[key] = (files[0], files[1])
        if all(launch.grid):
            facts.append(json.loads(files[1].read_text()))
    work = Workload(case, built.plan, units, problem.device, lambda folder: drawn(case, folder))
    try:
        return timeline_of(work, facts, judge.show)
    except (BadRecords, DeviceBusy) as error:
        return Timeline(label=case.label, reason=str(error)), {}

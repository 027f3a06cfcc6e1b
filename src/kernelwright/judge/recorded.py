"""Copies of a candidate's kernels that write down their own steps: built as judged ones are, for the timeline alone."""

import math
import shutil
import tempfile
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.case import Case
from kernelwright.core.messages.judge import RecordingAnswer
from kernelwright.core.plan import Launch, LaunchPlan
from kernelwright.core.verdict import Status
from kernelwright.judge.children import Lost
from kernelwright.judge.execution import plan_for, units_of
from kernelwright.judge.stages import Bench
from kernelwright.store.blobs import Blobs

MOST_BYTES = 1 << 30
"""What all records of a launch may take of the GPU's memory."""
LEAST, MOST = 256, 16 << 10
"""Bytes of records of a warp, eight each: it keeps its last 32 at least."""
WARPS = 4
"""Warps of a block, where the plan does not say."""


def built(bench: Bench, case: Case, blobs: Blobs) -> RecordingAnswer:
    """Return the plan with recording kernels in place of its own, and where they are kept; or why there is none."""
    candidate, device = bench.candidate, bench.problem.device
    option = getattr(plugins.load("backends", candidate.backend), "TIMELINE", None)
    if option is None:
        return RecordingAnswer(reason=f"{candidate.backend} kernels have no timeline; Triton's have.")
    try:
        plan = recording_plan(plan_for(candidate, case, device), option)
    except Lost as lost:
        return RecordingAnswer(reason=lost.reason)
    if plan is None:
        return RecordingAnswer(
            reason="the grid has too many blocks for records of all; pass a smaller --case."
        )
    units = units_of(plan, case)
    results = bench.builds.get_units(candidate, units, device.arch)
    for unit in units:
        if (found := results[unit.hash]).status is not Status.ACCEPTED:
            return RecordingAnswer(reason=f"{unit.kernel} cannot be built with records: {found.log[-300:]}")
    folder = Path(tempfile.mkdtemp(dir=bench.home, prefix="records-"))
    bench.builds.collect_units(candidate, units, device.arch, folder)
    kept = {path.name: blobs.put(path.read_bytes()) for path in sorted(folder.iterdir())}
    shutil.rmtree(folder)
    return RecordingAnswer(plan=plan, artefacts=kept)


def recording_plan(plan: LaunchPlan, option: str) -> LaunchPlan | None:
    """Return a plan whose kernels keep as many records as memory allows; None if that is too few."""
    launches = []
    for launch in plan.launches:
        room = record_bytes(launch)
        if room < LEAST:
            return None
        launches.append(launch.model_copy(update={"meta": launch.meta | {option: room}}))
    return plan.model_copy(update={"launches": tuple(launches)})


def record_bytes(launch: Launch) -> int:
    """Return the bytes of records of a warp: a power of two."""
    warps = (
        math.prod(launch.grid)
        * int(launch.meta.get("num_warps", WARPS))
        * int(launch.meta.get("num_ctas", 1))
    )
    return min(MOST, 1 << (MOST_BYTES // max(1, warps)).bit_length() - 1) if warps <= MOST_BYTES else 0

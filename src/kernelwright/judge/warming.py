"""What host code compiles in its own process, taken once and given to every later runner of the same artefact.

A Triton kernel with host code is compiled when it is first called; paid in every fresh runner, that is seconds a heat.
One runner executes the cases that will be timed, before anything is checked. What it leaves behind is frozen beside
the artefact, and every runner after it, checked or timed, finds the same files: they tell none of them which it is.
They are the candidate's own work and reach nobody else.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution
from kernelwright.judge.children import ForkedRunner, Lost, frozen_folder
from kernelwright.judge.execution import LOAD_SECONDS
from kernelwright.judge.stages.bench import CALL_SECONDS, Bench

MOST_BYTES, MOST_FILES = 64 << 20, 4096


def warm(bench: Bench, artefact: Path, cases: Sequence[Case]) -> None:
    """Have one runner execute every case, and freeze what it compiled; a failure is left to the stages to tell."""
    left = getattr(plugins.load("backends", bench.candidate.backend), "COMPILED", None)
    target = frozen_folder(artefact, bench.problem.device.index)
    if bench.is_cpu or not left or target.exists():
        return
    with bench.arena(cases, list(range(len(cases)))) as arena:
        for number, case in enumerate(cases):
            inputs = bench.op.make_inputs(case, Distribution.SIGNED, bench.seed)
            arena.write_inputs(number, inputs)
        born = ForkedRunner(bench.nursery, artefact, bench.candidate.backend, arena, bench.home)
        with suppress(Lost), born as runner:
            runner.ready(LOAD_SECONDS)
            runner.run(0, len(cases), CALL_SECONDS)
            runner.kill()  # nothing changes any more
            _freeze(Path(runner.folder.name) / left, target)


def _freeze(left: Path, target: Path) -> None:
    """Copy plain files and folders, within bounds; anything else, or too much, and nothing is kept."""
    staged = Path(tempfile.mkdtemp(dir=target.parent, prefix=".staged-"))
    try:
        if _copied(left, staged):
            os.rename(staged, target)  # noqa: PTH104 - must fail, not merge, if another judge was first
    except OSError:
        pass
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _copied(left: Path, staged: Path) -> bool:
    total = count = 0
    for folder, folders, files in os.walk(left):  # follows no link
        place = staged / Path(folder).relative_to(left)
        for name in folders:
            (place / name).mkdir()
        for name in files:
            source = Path(folder, name)
            descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as stream:
                content = stream.read(MOST_BYTES - total + 1)
            total, count = total + len(content), count + 1
            if total > MOST_BYTES or count > MOST_FILES:
                return False
            (place / name).write_bytes(content)
    return bool(count)

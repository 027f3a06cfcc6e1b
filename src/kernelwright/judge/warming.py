"""What host code compiles in its own process, taken once and given to every later runner of the same artefact.

A Triton kernel with host code is compiled when it is first called; paid in every fresh runner, that is seconds a heat.
A few runners execute the cases everybody knows, before anything is checked. What they leave behind is frozen beside the
artefact, and every runner after them, checked or timed, finds the same files: they tell none of them which it is. They
are the candidate's own work and reach nobody else.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution
from kernelwright.judge.children import Lost, Runner
from kernelwright.judge.execution import LOAD_SECONDS
from kernelwright.judge.runners import ForkedRunner, frozen_folder
from kernelwright.judge.stages.bench import CALL_SECONDS, Bench

MOST_BYTES, MOST_FILES = 256 << 20, 8192
RUNNERS = 8
"""Processes that compile at once."""


def warm(bench: Bench, artefact: Path, cases: Sequence[Case]) -> None:
    """Have runners execute every case, and freeze what they compiled; a failure is left to the stages to tell."""
    left = getattr(plugins.load("backends", bench.candidate.backend), "COMPILED", None)
    target = frozen_folder(artefact, bench.problem.device.index)
    if not left or target.exists():
        return
    parts = [cases[first::RUNNERS] for first in range(min(RUNNERS, len(cases)))]
    with ExitStack() as stack:
        runners = []
        for part in parts:
            arena = stack.enter_context(bench.arena(part, range(len(part))))
            for number, case in enumerate(part):
                arena.write_inputs(number, bench.op.make_inputs(case, Distribution.SIGNED, bench.seed))
            born = ForkedRunner(bench.nursery, artefact, bench.candidate.backend, arena, bench.home)
            runners.append(stack.enter_context(born))
        with ThreadPoolExecutor(len(runners)) as pool:
            counts = [len(part) for part in parts]
            succeeded = list(pool.map(_exercise, runners, counts))
        for runner in runners:
            runner.kill()  # nothing changes any more
        if all(succeeded):
            _freeze([Path(runner.folder.name) / left for runner in runners], target)


def _exercise(runner: Runner, count: int) -> bool:
    with suppress(Lost):
        runner.ready(LOAD_SECONDS)
        for number in range(count):
            runner.run(number, 1, CALL_SECONDS)
        return True
    return False


def _freeze(folders: Sequence[Path], target: Path) -> None:
    """Copy plain files and folders, within bounds; anything else, or too much, and nothing is kept."""
    staged = Path(tempfile.mkdtemp(dir=target.parent, prefix=".staged-"))
    try:
        if _copied(folders, staged):
            os.rename(staged, target)  # noqa: PTH104 - must fail, not merge, if another judge was first
    except OSError:
        pass
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _copied(folders: Sequence[Path], staged: Path) -> bool:
    total = count = 0
    for left in folders:
        if left.is_symlink():  # it would be walked: whatever the judge may read would come to the candidate
            return False
        for folder, _, files in os.walk(left):  # follows no link below
            place = staged / Path(folder).relative_to(left)
            place.mkdir(exist_ok=True)
            for name in files:
                descriptor = os.open(Path(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with os.fdopen(descriptor, "rb") as stream:
                    content = stream.read(MOST_BYTES - total + 1)
                total, count = total + len(content), count + 1
                if total > MOST_BYTES or count > MOST_FILES:
                    return False
                (place / name).write_bytes(content)
    return bool(count)

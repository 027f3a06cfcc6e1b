"""Regions of a model's graph as files: the judge reads what a `graph` problem computes from one.

The text is in the journal with the problem; the file is made of it wherever a run goes on.
"""

from collections.abc import Iterable
from pathlib import Path

from kernelwright.core.captured import CapturedRegion
from kernelwright.core.frozen import digest
from kernelwright.core.problem import Problem
from kernelwright.engine.own_baseline import PREFIX
from kernelwright.store.disk import disk_errors, make_folder


def regions_folder(home: Path) -> Path:
    """Return where the files of regions lie, for all runs."""
    return home / "regions"


def reference_of(region: CapturedRegion, folder: Path) -> str:
    """Return how a problem names the file of its region; its name is its content."""
    return f"{PREFIX}{folder / region.reference_hash}.py#{region.reference_hash}"


def write_regions(problems: Iterable[Problem]) -> None:
    """Write the file of every problem that has a region of its own, unless it is there."""
    for problem in problems:
        if problem.captured is None or problem.reference is None:
            continue
        path = Path(problem.reference.removeprefix(PREFIX).rpartition("#")[0])
        with disk_errors(path):
            if path.is_file() and digest(path.read_text()) == problem.captured.reference_hash:
                continue
            make_folder(path.parent)
            path.write_text(problem.captured.source)

"""Regions of a model's graph as files: the judge reads what a `graph` problem computes from one.

The text is in the journal with the problem; the file is made of it wherever a run goes on. Where it lies is the home's
to say and never the journal's, which may be somebody else's: its name is the hash of its text.
"""

from collections.abc import Iterable
from pathlib import Path

from kernelwright.core.captured import CapturedRegion
from kernelwright.core.frozen import digest
from kernelwright.core.problem import Problem
from kernelwright.engine.own_baseline import PREFIX
from kernelwright.store.disk import disk_errors, make_folder, replace_file


def regions_folder(home: Path) -> Path:
    """Return where the files of regions lie, for all runs."""
    return home.absolute() / "regions"  # the judge, which reads them, works in a folder of its own


def reference_of(region: CapturedRegion, folder: Path) -> str:
    """Return how a problem names the file of its region; its name is its content."""
    return f"{PREFIX}{folder / region.reference_hash}.py#{region.reference_hash}"


def at_home(problem: Problem, home: Path) -> Problem:
    """Return a problem whose region is read from this home, wherever its file lay when it was recorded."""
    if problem.captured is None:
        return problem
    reference = reference_of(problem.captured, regions_folder(home))
    return problem.model_copy(update={"reference": reference})


def write_regions(problems: Iterable[Problem], folder: Path) -> None:
    """Write the region of every problem that has one into a folder, unless it is there."""
    for problem in problems:
        if problem.captured is None:
            continue
        content = problem.captured.source.encode()
        path = folder / f"{problem.captured.reference_hash}.py"
        with disk_errors(path):
            if path.is_file() and digest(path.read_bytes()) == problem.captured.reference_hash:
                continue
            make_folder(folder)
            replace_file(path, content)

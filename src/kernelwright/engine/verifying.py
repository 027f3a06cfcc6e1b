"""A folder of kernels against a model, outside a run: where it is, whether it is whole, and what it does there."""

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core.config import RunConfig
from kernelwright.core.errors import BadInput, NotFound
from kernelwright.core.events import ModelVerified
from kernelwright.core.manifest import FOLDER, NAME, Manifest
from kernelwright.core.messages.model import OutputCheck, VerifyModel
from kernelwright.core.tree import Tree
from kernelwright.engine.app import inductor_cache
from kernelwright.engine.diagnose import Culprit, Diagnosis
from kernelwright.engine.service import Show
from kernelwright.engine.splicing import ROUNDS, Whole, asked, verification
from kernelwright.engine.winners import winners, write_alone, write_drop_in
from kernelwright.hardware.detect import usable_cores
from kernelwright.report.usage import is_alone, who_ran_the_rest
from kernelwright.store.blobs import Blobs
from kernelwright.store.disk import disk_errors
from kernelwright.store.journal import Journal
from kernelwright.store.locate import find_run
from kernelwright.store.manifest import certified, read_manifest

COMPILED = "__pycache__"
"""Where Python puts what it compiled."""


@dataclass(frozen=True)
class Verified:
    """What a folder of kernels does to a model."""

    model: ModelVerified
    checks: tuple[OutputCheck, ...]
    """Of all processes, every way the model was called."""
    culprits: tuple[Culprit, ...] = ()

    @property
    def holds(self) -> bool:
        """Tell whether the outputs hold on every way the model was called."""
        return not any(check.problem for check in self.checks)


def kernels_folder(home: Path, name: str) -> Path:
    """Return the folder of kernels: given itself, or of a run; one that shipped them and lost them writes them anew."""
    if (Path(name) / NAME).is_file():
        return Path(name)
    run = find_run(home, name)
    if not (run / FOLDER / NAME).is_file():
        _written(run)
    return run / FOLDER


def _written(run: Path) -> None:
    tree = Journal.open(run).tree()
    if tree.verified is None and write_alone(run, tree):
        return
    if tree.verified is None or not tree.verified.shipped:
        reason = (
            tree.verified.reason if tree.verified else tree.ended.reason if tree.ended else "it has not ended"
        )
        what = "is proven faster than the baselines" if is_alone(tree.started) else "pays end to end"
        remedy = f"`kernelwright show {shlex.quote(str(run))}` says more; only what {what} is written."
        raise BadInput(str(run), f"this run shipped no kernels: {reason}", remedy)
    groups = winners(tree, Blobs(run / "blobs"))
    stay = [one for group in groups for one in group if one.problem_hash in tree.verified.winners]
    with disk_errors(run / FOLDER):
        write_drop_in(run, tree, stay)


def rest_of(folder: Path) -> str:
    """Return who ran the rest of the model when the kernels of a run's folder were verified; eager if nobody knows."""
    tree = tree_of(folder)
    return who_ran_the_rest(tree.started if tree else None)


def tree_of(folder: Path) -> Tree | None:
    """Return the tree of the run in whose folder kernels lie; None if they lie elsewhere."""
    try:
        return Journal.open(folder.resolve().parent).tree()
    except NotFound:
        return None


def checked(folder: Path) -> Manifest:
    """Return a folder's manifest once every file it names is what it says, and no other one lies there.

    What Python compiled of the modules is removed: it would be run unread in the place of what was checked.
    """
    manifest = read_manifest(folder)
    listed = {folder / NAME, *(folder / file.name for file in manifest.files)}
    for path in sorted(folder.rglob("*")):
        is_known = path.is_dir() or (path.is_file() and (path in listed or path.parent == folder / COMPILED))
        if path.is_symlink() or not is_known:
            name = str(path.relative_to(folder))
            raise BadInput(
                str(folder), f"its manifest says nothing of {name!r}", "Remove it, or do not use it."
            )
    for file in manifest.files:
        certified(folder / file.name, file.hash)
    if (folder / COMPILED).is_dir():
        with disk_errors(folder):
            shutil.rmtree(folder / COMPILED)
    return manifest


def copied(folder: Path, target: Path) -> Path:
    """Copy a folder of kernels to a place that is empty or not there, and return it."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadInput("--to", f"{str(target)!r} is there already and is not empty", "Name another place.")
    with disk_errors(target):
        shutil.copytree(folder, target, dirs_exist_ok=True)
    return target


def verify_folder(config: RunConfig, folder: Path, home: Path, show: Show, *, diagnose: bool) -> Verified:
    """Return what the kernels of a folder do to a model: outputs, end-to-end times, and who is to blame."""
    assert config.model is not None
    manifest = checked(folder)
    request = VerifyModel(
        spec=config.model,
        options=config.model_options(),
        threads=config.threads or usable_cores(),
        winners=(),
        folder=str(folder.resolve()),
        rounds=ROUNDS,
        seed=0,
        rest=config.who_runs_the_rest(),
        cache_folder=str(inductor_cache(home)),
    )
    times = asked(Whole(request, config.model_processes, show), ())
    found = verification((), times, 0, against=config.against)
    by_problem = {entry.problem_hash: entry.candidate_hash for entry in manifest.entries}
    found = found.model_copy(update={"winners": by_problem})
    checks = tuple(check for one in times for check in one.checks)
    result = Verified(found, checks)
    if diagnose and not result.holds:
        labels = [(f"{one.backend} {one.case.label}", one.candidate_hash) for one in manifest.entries]
        return Verified(found, checks, tuple(Diagnosis(request, labels, show).culprits()))
    return result

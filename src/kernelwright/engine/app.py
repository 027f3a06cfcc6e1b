"""Wiring: from settings to a run with a journal, a device and a judge; and the same again for a resumed one."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from kernelwright.core import plugins
from kernelwright.core.account import Against, Ranking, refuse_out_of_reach
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device
from kernelwright.core.errors import BadConfig, NothingToOptimize
from kernelwright.core.events import Body, ProblemFound, RunStarted
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.messages.model import ModelProfiled, ProfileModel
from kernelwright.core.model_spec import refuse_foreign
from kernelwright.core.ports import Agent
from kernelwright.core.tree import Tree
from kernelwright.engine.inbox import collect, has_mail
from kernelwright.engine.judging import device_for, problem_at
from kernelwright.engine.loop import optimize
from kernelwright.engine.offering import languages, offered, refuse_unusable
from kernelwright.engine.profile import profiled, ranked
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds
from kernelwright.engine.service import JudgeClient, Show
from kernelwright.engine.sittings import sit_down, sittings, spent
from kernelwright.hardware.calibrate import ceilings
from kernelwright.hardware.detect import torch_device, usable_cores
from kernelwright.store.disk import disk_errors, make_folder
from kernelwright.store.journal import Journal, JournalWriter
from kernelwright.store.locate import new_run_id, runs_folder

Watch = Callable[[Run, Sequence[Body]], None]
"""Told of every append once it is in the tree."""
VERSIONED = ("kernelwright", "torch", "triton", "numpy", "pydantic")


def unwatched(run: Run, bodies: Sequence[Body]) -> None:
    """Watch nothing."""


def versions() -> dict[str, str]:
    """Return the versions a result depends on."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _shown(config: RunConfig) -> dict[str, object]:
    """Return the settings as the journal may hold them: without the password of a database."""
    shown = config.model_dump(mode="json")
    if config.journal_url and (password := urlsplit(config.journal_url).password):
        shown["journal_url"] = config.journal_url.replace(f":{password}@", ":***@")
    return shown


def inductor_cache(home: Path) -> Path:
    """Return where torch.compile keeps what it compiled for the user's models, from one process to the next."""
    return home / "cache" / "inductor"


def measured(config: RunConfig, home: Path, threads: int, show: Show) -> tuple[ModelProfiled, Ranking]:
    """Return where the model's time goes; a target that the device's floors exclude is refused here."""
    assert config.model is not None
    request = ProfileModel(
        spec=config.model,
        options=config.model_options(),
        threads=threads,
        with_compiled=config.against is Against.COMPILED,
        cache_folder=str(inductor_cache(home)),
    )
    show(f"profiling {config.model}")
    found = profiled(request, show)
    if not any(region.case is not None for region in found.regions):
        raise NothingToOptimize(config.model, plugins.names("ops"))
    order = ranked(found, home, config.against, show)
    if config.target_speedup is not None:
        refuse_out_of_reach(config.model, config.target_speedup, order)
    return found, order


def author_of(config: RunConfig) -> Agent | None:
    """Return who proposes candidates; `none` leaves it at the seeds."""
    name, _, detail = config.author.partition(":")
    if name == "none":
        return None
    author: Agent = plugins.load("agents", name).author(detail)
    if (check := getattr(author, "check", None)) is not None:
        check()  # a key that is refused is told now, not after the baselines
    return author


def _opening(
    config: RunConfig, home: Path, threads: int, show: Show
) -> tuple[Device, tuple[str, ...], list[Body]]:
    """Return the device, the languages to try and the events a run begins with: the ranking and the problems."""
    if config.op is not None:
        device = device_for(config)
        names = languages(config, device)
        problem = problem_at(config.op, config.shape, device)
        return device, names, [ProblemFound(problem=problem.model_copy(update={"share": 1.0}))]
    found, order = measured(config, home, threads, show)
    device = torch_device(found.device)
    names = languages(config, device)
    problems, told = offered(order, device, names, config.top, found.eager.total_us)
    return device, names, [told, *(ProblemFound(problem=problem) for problem in problems)]


def start(config: RunConfig, home: Path, show: Show, watch: Watch = unwatched) -> Path:
    """Carry out a whole run and return its folder."""
    begun = datetime.now(UTC)
    refuse_unusable(config)  # before anything is written or measured
    author, _ = author_of(config), plugins.load("strategies", config.strategy)
    with disk_errors(runs_folder(home)):
        make_folder(runs_folder(home))
    threads = config.threads or usable_cores()
    device, names, opening = _opening(config, home, threads, show)
    beginning = Beginning(begun, device, Seeds(names, threads), tuple(opening), author)
    return begin(config, home, beginning, show, watch)


@dataclass(frozen=True)
class Beginning:
    """What a new run begins with."""

    at: datetime
    """When it was asked for: what was measured before its journal is part of it."""
    device: Device
    seeds: Seeds
    events: tuple[Body, ...]
    """Its problems, and what is told of them."""
    author: Agent | None = None


def begin(config: RunConfig, home: Path, beginning: Beginning, show: Show, watch: Watch = unwatched) -> Path:
    """Carry out a new run on problems that are known, and return its folder."""
    run_id = new_run_id(datetime.now(UTC), os.urandom(3))
    folder = runs_folder(home) / run_id
    with disk_errors(folder):
        make_folder(folder)
    sit_down(folder, 0, beginning.at)
    with Journal.create(config.journal_url or folder, run_id) as journal:
        run = _run(config, beginning.device, beginning.seeds, folder, journal, Tree(), show, watch)
        run.author, run.cache = beginning.author, inductor_cache(home)
        started = RunStarted(config=_shown(config), versions=versions(), device=beginning.device)
        run.record([started, *beginning.events])
        run.spent.seconds = (datetime.now(UTC) - beginning.at).total_seconds()
        _carry_out(run, home, show)
    return folder


def resume(folder: Path, home: Path, show: Show, watch: Watch = unwatched) -> Path:
    """Take a run up where its journal ends, and return its folder."""
    begun = datetime.now(UTC)
    with Journal.open_for_writing(folder) as journal:
        tree = journal.tree()
        if tree.started is None:
            raise BadConfig(str(folder), "the journal has no beginning", "Start a new run.")
        config = RunConfig.model_validate(tree.started.config)
        refuse_foreign(config.model or "", home)
        device, threads = tree.started.device, config.threads or usable_cores()
        run = _run(
            config, device, Seeds(languages(config, device), threads), folder, journal, tree, show, watch
        )
        run.author, run.cache = author_of(config), inductor_cache(home)
        run.spent = spent(journal.events(), sittings(folder))
        if is_over(tree) and not has_mail(folder):
            show("the run has ended; nothing is left to do")
            return folder
        sit_down(folder, tree.events, begun)
        if is_over(tree):  # what was submitted since opens it again
            for problem in list(tree.problems.values()):
                collect(run, problem)
        if is_over(tree):
            show("the run has ended; what was submitted since holds nothing new")
            return folder
        _carry_out(run, home, show)
    return folder


def is_over(tree: Tree) -> bool:
    """Tell whether a run has ended with nothing to be taken up again."""
    return tree.ended is not None and not tree.ended.failed


def _run(
    config: RunConfig,
    device: Device,
    seeds: Seeds,
    folder: Path,
    journal: JournalWriter,
    tree: Tree,
    show: Show,
    watch: Watch,
) -> Run:
    def record(bodies: Sequence[Body]) -> None:
        journal.append(bodies)
        for body in bodies:
            tree.apply(body)
        watch(run, bodies)

    run = Run(config, device, seeds.threads, folder, record, tree, show, seeds)
    return run


def _carry_out(run: Run, home: Path, show: Show) -> None:
    config, folder = run.config, run.folder
    settings = JudgeSettings(
        threads=run.threads,
        max_pairs=config.max_pairs,
        alpha=config.alpha,
        hidden_shapes=config.hidden_shapes,
        cache_folder=str(home / "cache" / "builds"),
        blob_folder=str(folder / "blobs"),
        ceilings=ceilings(run.device, home, show=show).ceilings,
    )
    run.ceilings = settings.ceilings
    judge = JudgeClient(settings, show)
    try:
        optimize(run, judge)
    finally:
        judge.close()

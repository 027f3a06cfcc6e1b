"""Wiring: from resolved settings to a run with a journal, a device and a judge."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from kernelwright.core import plugins
from kernelwright.core.account import Against, Ranking, refuse_out_of_reach
from kernelwright.core.config import RunConfig
from kernelwright.core.errors import NothingToOptimize
from kernelwright.core.events import Body, RunStarted
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.messages.model import ModelProfiled, ProfileModel
from kernelwright.core.tree import Tree
from kernelwright.engine.loop import Run, optimize
from kernelwright.engine.offering import languages, offered, refuse_unusable
from kernelwright.engine.profile import profiled, ranked
from kernelwright.engine.service import JudgeClient, Show
from kernelwright.hardware.calibrate import ceilings
from kernelwright.hardware.detect import torch_device, usable_cores
from kernelwright.store.disk import disk_errors, make_folder
from kernelwright.store.journal import Journal
from kernelwright.store.locate import new_run_id, runs_folder

VERSIONED = ("kernelwright", "torch", "triton", "numpy", "pydantic")


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


def start(config: RunConfig, home: Path, show: Show) -> Path:
    """Carry out a whole run and return its folder."""
    refuse_unusable(config)  # before anything is written or measured
    with disk_errors(runs_folder(home)):
        make_folder(runs_folder(home))
    threads = config.threads or usable_cores()
    found, order = measured(config, home, threads, show)
    device = torch_device(found.device)
    names = languages(config, device)
    problems, told = offered(order, device, names, config.top, found.eager.total_us)
    run_id = new_run_id(datetime.now(UTC), os.urandom(3))
    folder = runs_folder(home) / run_id
    with disk_errors(folder):
        make_folder(folder)
    with Journal.create(config.journal_url or folder, run_id) as journal:
        tree = Tree()

        def record(bodies: Sequence[Body]) -> None:
            journal.append(bodies)
            for body in bodies:
                tree.apply(body)

        record([RunStarted(config=_shown(config), versions=versions(), device=device), told])
        run = Run(config, device, threads, folder, record, tree, show, names, inductor_cache(home))
        settings = JudgeSettings(
            threads=threads,
            max_pairs=config.max_pairs,
            alpha=config.alpha,
            hidden_shapes=config.hidden_shapes,
            cache_folder=str(home / "cache" / "builds"),
            blob_folder=str(folder / "blobs"),
            ceilings=ceilings(device, home, show=show).ceilings,
        )
        judge = JudgeClient(settings, show)
        try:
            optimize(run, judge, problems)
        finally:
            judge.close()
    return folder

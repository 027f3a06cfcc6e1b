"""Wiring: from resolved settings to a run with a journal, a device and a judge."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device
from kernelwright.core.events import Body, RunStarted
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.core.tree import Tree
from kernelwright.engine.loop import Run, backends, optimize, trace
from kernelwright.engine.service import JudgeClient, Show
from kernelwright.hardware.calibrate import ceilings
from kernelwright.hardware.detect import cpu_device, usable_cores
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


def start(config: RunConfig, home: Path, show: Show) -> Path:
    """Carry out a whole run and return its folder."""
    backends(config)  # an unknown or unusable language is refused before anything is written
    device: Device = cpu_device()
    threads = config.threads or usable_cores()
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

        record([RunStarted(config=_shown(config), versions=versions(), device=device)])
        run = Run(config, device, threads, folder, record, tree, show)
        traced = trace(run)  # first: a model that cannot be loaded is said before anything is measured
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
            optimize(run, judge, traced)
        finally:
            judge.close()
    return folder

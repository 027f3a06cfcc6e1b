"""`program.md`: how a coding assistant or a person drives a run, with the exact commands; written into its folder.

Beside it every problem lies as a file, so that one command judges a candidate on the sizes of the run.
"""

import os
import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from string import Template

from kernelwright.core import plugins
from kernelwright.core.problem import Problem
from kernelwright.engine.run import Run
from kernelwright.store.disk import disk_errors, make_folder, replace_file
from kernelwright.store.locate import RUN_ID, runs_folder
from kernelwright.store.locate import home as usual_home

FILE, PROBLEMS = "program.md", "problems"
UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))


def write_program(run: Run, home: Path) -> Path:
    """Write the program of a run into its folder and return the file."""
    path, folder = run.folder / FILE, run.folder / PROBLEMS
    with disk_errors(folder):
        make_folder(folder)
        for place, one in enumerate(run.tree.problems.values(), 1):
            replace_file(folder / f"{place}.json", (one.model_dump_json(indent=2) + "\n").encode())
        replace_file(path, program(run, home, os.environ).encode())
    return path


def program(run: Run, home: Path, environment: Mapping[str, str]) -> str:
    """Return the program of a run: the template with everything that is known of it."""
    config, problems = run.config, list(run.tree.problems.values())
    backend = run.seeds.backends[0]
    extension = str(plugins.load("backends", backend).EXTENSION)
    is_usual = home.resolve() == usual_home(environment).resolve()
    return Template(_template()).substitute(
        what=config.model or config.op or "a region of a model",
        run=run.folder.name,
        name=_name(run.folder, home),
        folder=run.folder.resolve(),
        device=run.device.title,
        languages=", ".join(run.seeds.backends),
        budget=_time(config.budget_s),
        begun=_begun(run.folder.name),
        home=""
        if is_usual
        else f"\nFirst of all: `export KERNELWRIGHT_HOME={shlex.quote(str(home.resolve()))}`\n",
        problems="\n".join(_row(place, one) for place, one in enumerate(problems, 1)),
        problem_file=shlex.quote(str(run.folder.resolve() / PROBLEMS / "1.json")),
        extension=extension,
        near_floor=f"{100 * config.near_floor:.0f}",
        patience=config.patience * (1 + config.escalations),
    )


def _template() -> str:
    return Path(__file__).with_suffix(".md").read_text(encoding="utf-8")


def _name(folder: Path, home: Path) -> str:
    """Return how the verbs are told which run is meant."""
    is_at_home = folder.parent.resolve() == runs_folder(home).resolve()
    return folder.name if is_at_home else shlex.quote(str(folder.resolve()))


def _begun(run_id: str) -> str:
    """Return when a run began, by its name."""
    if not RUN_ID.fullmatch(run_id):
        return "earlier"
    return f"on {datetime.strptime(run_id[:15], '%Y%m%d-%H%M%S'):%Y-%m-%d at %H:%M} UTC"


def _row(place: int, problem: Problem) -> str:
    cases = "; ".join(f"`{case.label}`" for case in problem.cases)
    times = f", {problem.count} times in the model" if problem.count > 1 else ""
    return f"{place}. {cases}: {100 * problem.share:.1f} % of the time{times}"


def _time(seconds: float) -> str:
    size, unit = next((one for one in UNITS if seconds >= one[0]), UNITS[-1])
    return f"{seconds / size:g} {unit}"

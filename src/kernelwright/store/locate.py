"""Where things lie: the home folder, the runs in it, a run by its name, the configuration file."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from kernelwright.core.config import CONFIG_FILE
from kernelwright.core.errors import BadConfig, NotFound, UnknownName

HOME_VARIABLE = "KERNELWRIGHT_HOME"
LAST = "last"
"""The name that means the newest run."""
RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
SHOWN = 20
"""How many of the newest runs an error lists."""


def home(environment: Mapping[str, str]) -> Path:
    """Return the folder everything is kept in: KERNELWRIGHT_HOME or `~/.kernelwright`."""
    if given := environment.get(HOME_VARIABLE):
        return Path(given)
    return Path(environment.get("HOME") or Path.home()) / ".kernelwright"


def runs_folder(home: Path) -> Path:
    """Return the folder of the run folders."""
    return home / "runs"


def is_own(folder: Path, home: Path) -> bool:
    """Tell whether the folder of a run lies among the home's own runs; a link that leads out of them does not."""
    return folder.resolve().parent == runs_folder(home).resolve()


def new_run_id(now: datetime, random: bytes) -> str:
    """Return a name that sorts by time; three random bytes part the runs of one second."""
    if len(random) < 3:
        raise ValueError(f"a run id needs 3 random bytes, got {len(random)}")
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{random[:3].hex()}"


def run_ids(home: Path) -> list[str]:
    """Return the names of all runs, oldest first."""
    try:
        return sorted(entry.name for entry in runs_folder(home).iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []


def find_run(home: Path, name: str) -> Path:
    """Return the folder of a run given by path, id, unique beginning of an id, or `last`."""
    known = run_ids(home)
    if name in known:
        return runs_folder(home) / name
    if name == LAST:
        # Only names we give: a folder copied in by hand under another name says nothing of its age.
        if dated := [run for run in known if RUN_ID.fullmatch(run)]:
            return runs_folder(home) / dated[-1]
        raise NotFound("A run in", runs_folder(home), "Start one with `kernelwright optimize`.")
    if name and (folder := Path(name)).is_dir():
        return folder
    if "/" in name:
        raise NotFound("Run folder", name, f"Give a run id, {LAST!r}, or the path of a run folder.")
    match [run for run in known if name and run.startswith(name)]:
        case [run]:
            return runs_folder(home) / run
        case [] if not known:
            raise NotFound("Run", name, "There is none yet: start one with `kernelwright optimize`.")
        case []:
            raise UnknownName("run", name, known[-SHOWN:])
        case several:
            raise BadConfig(
                "command line",
                f"run {name!r} may be any of {', '.join(several[-SHOWN:])}",
                "Give more of its name.",
            )


def config_file(start: Path) -> Path | None:
    """Return the configuration file of a working folder, if it has one."""
    file = start / CONFIG_FILE
    return file if file.is_file() else None

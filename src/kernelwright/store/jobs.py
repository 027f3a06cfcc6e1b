"""Runs in the background: one file each below `jobs/` of the home folder, and a lock that its process holds.

The lock says whether the process lives: the kernel frees it however the process dies. The file says what it last did.
"""

import fcntl
import os
from pathlib import Path

from pydantic import ValidationError

from kernelwright.core.errors import BadConfig
from kernelwright.core.frozen import Frozen
from kernelwright.store.disk import disk_errors, make_folder, replace_file

FOLDER = "jobs"
LAST_WORDS = 2000
"""Bytes at the end of a log that are looked at."""


class Job(Frozen):
    """A run in the background, as its own process tells of it."""

    run_id: str
    """The run; its folder comes into being when the first thing is journalled."""
    pid: int = 0
    """The process; 0 before it said so itself."""
    doing: str = "starting"
    """What it last said."""
    ended: bool = False
    """Whether it came to its end."""
    error: str = ""
    """What went wrong, in one line with the remedy."""


def jobs_folder(home: Path) -> Path:
    """Return the folder of the jobs."""
    return home / FOLDER


def write_job(home: Path, job: Job) -> None:
    """Write what is known of a job, in one step."""
    folder = jobs_folder(home)
    with disk_errors(folder):
        make_folder(folder)
        replace_file(folder / f"{job.run_id}.json", job.model_dump_json().encode())


def read_job(home: Path, run_id: str) -> Job | None:
    """Return what is known of a job; None if the run was not started in the background."""
    path = jobs_folder(home) / f"{run_id}.json"
    try:
        return Job.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise BadConfig(str(path), "not what a job writes", "Remove the file.") from error


def job_ids(home: Path) -> list[str]:
    """Return the runs that were started in the background, oldest first."""
    return sorted(path.stem for path in jobs_folder(home).glob("*.json"))


def log_of(home: Path, run_id: str) -> Path:
    """Return where the process of a job writes what it has to say."""
    return jobs_folder(home) / f"{run_id}.log"


def last_words(home: Path, run_id: str) -> str:
    """Return the last line of a job's log."""
    try:
        tail = log_of(home, run_id).read_bytes()[-LAST_WORDS:].decode(errors="replace")
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")


def locked(home: Path, run_id: str) -> int | None:
    """Take the lock of a job and return its descriptor, to be handed to the process; None if a process holds it."""
    folder = jobs_folder(home)
    with disk_errors(folder):
        make_folder(folder)
        descriptor = os.open(folder / f"{run_id}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_alive(home: Path, run_id: str) -> bool:
    """Tell whether the process of a job lives."""
    if not (jobs_folder(home) / f"{run_id}.lock").exists():
        return False
    descriptor = locked(home, run_id)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False

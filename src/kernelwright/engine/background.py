"""A run in a process of its own, which outlives whoever started it: `python -m kernelwright.engine.background`.

1. `launch` takes the job's lock, starts the process with it, and sends the settings through its standard input.
2. The process carries out the run like `kernelwright optimize` or `resume`, and tells in the job's file what it does.
3. `stop` interrupts it like Ctrl-C would: everything journalled is safe, and `resume` goes on.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import kernelwright
from kernelwright.core.config import RunConfig
from kernelwright.core.environment import close_off
from kernelwright.core.errors import BadInput, KernelwrightError
from kernelwright.core.events import Body
from kernelwright.core.frozen import Frozen
from kernelwright.engine.app import resume, start
from kernelwright.engine.run import Run
from kernelwright.report.write import write_reports
from kernelwright.store.disk import disk_errors
from kernelwright.store.jobs import Job, locked, log_of, read_job, write_job
from kernelwright.store.journal import Journal
from kernelwright.store.locate import new_run_id, runs_folder

EVERY_S = 0.5
"""Seconds between two writings of what a job does."""
PATIENCE_S = 10.0
"""How long an interrupted process may take to end."""


class Errand(Frozen):
    """What a background process is sent to do."""

    home: str
    """Folder of runs and caches."""
    run_id: str
    """The run to begin, or to take up again."""
    config: RunConfig | None = None
    """Settings of a new run; None takes one up again."""


def launch(config: RunConfig, home: Path, cwd: Path) -> str:
    """Start a new run in the background and return its id."""
    run_id = new_run_id(datetime.now(UTC), os.urandom(3))
    _send(Errand(home=str(home.resolve()), run_id=run_id, config=config), cwd)
    return run_id


def launch_again(run_id: str, home: Path, cwd: Path) -> None:
    """Take a run up again in the background."""
    _send(Errand(home=str(home.resolve()), run_id=run_id), cwd)


def _send(errand: Errand, cwd: Path) -> None:
    home = Path(errand.home)
    lock = locked(home, errand.run_id)
    if lock is None:
        raise BadInput(f"run {errand.run_id}", "it is running already", "Wait for it, or stop it first.")
    try:
        write_job(home, Job(run_id=errand.run_id))
        root = str(Path(kernelwright.__file__).parents[1])
        with disk_errors(home), log_of(home, errand.run_id).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "kernelwright.engine.background"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=cwd,
                env=os.environ | {"PYTHONPATH": _with(root)},  # it is an engine: it holds the keys
                pass_fds=(lock,),
                start_new_session=True,
            )
    finally:
        os.close(lock)
    assert process.stdin is not None
    try:
        process.stdin.write(errand.model_dump_json().encode())
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died at once: its log tells why
    # Whoever reads the job's lock knows when it has ended; this only leaves no dead process behind.
    threading.Thread(target=process.wait, daemon=True).start()


def _with(root: str) -> str:
    more = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join((root, more)) if more else root


def stop(run_id: str, home: Path) -> bool:
    """Interrupt the run of a job; tell whether its process has ended."""
    job = read_job(home, run_id)
    if job is None or not job.pid:
        return True
    until = time.monotonic() + PATIENCE_S
    told = False
    while (lock := locked(home, run_id)) is None:
        # The lock is held, so the process lives and its number is its own.
        if not told:
            os.kill(job.pid, signal.SIGINT)
            told = True
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    os.close(lock)
    return True


class Diary:
    """Writes what a run does into its job, not more often than anybody reads it."""

    def __init__(self, home: Path, run_id: str) -> None:
        self.home = home
        self.job = Job(run_id=run_id, pid=os.getpid())
        self.written = 0.0
        write_job(home, self.job)

    def tell(self, text: str) -> None:
        """Note what is being done."""
        self.job = self.job.model_copy(update={"doing": text})
        if time.monotonic() - self.written >= EVERY_S:
            self.written = time.monotonic()
            write_job(self.home, self.job)

    def watch(self, run: Run, bodies: Sequence[Body]) -> None:
        """Note how far the run is."""
        self.tell(f"{len(run.tree.nodes)} candidates, {bodies[-1].kind.replace('_', ' ')}")

    def end(self, error: str = "") -> None:
        """Note how it ended."""
        words = "stopped" if error else "ended"
        write_job(self.home, self.job.model_copy(update={"doing": words, "ended": True, "error": error}))


def main() -> int:
    """Carry out the errand that standard input tells."""
    close_off(die_with_parent=False)
    # Whoever started it may ignore the signal, as a shell's background jobs do; here it is the way to be stopped.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    errand = Errand.model_validate_json(sys.stdin.buffer.read())
    home = Path(errand.home)
    diary = Diary(home, errand.run_id)
    try:
        if errand.config is not None:
            folder = start(errand.config, home, diary.tell, diary.watch, errand.run_id)
        else:
            folder = resume(runs_folder(home) / errand.run_id, home, diary.tell, diary.watch)
        place = errand.config.journal_url if errand.config else None
        journal = Journal.open(place or folder, folder.name)
        write_reports(folder, journal.tree(), journal.events())
    except KernelwrightError as error:
        diary.end(str(error))
        return 1
    except KeyboardInterrupt:
        diary.end("interrupted; everything journalled is safe, and it can be taken up again")
        return 130
    diary.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python benchmarks/live_kills.py`: one real run, killed for good at random times and taken up again each time.

1. A run on the CPU is started, of a model with two regions that certainly have winners: it profiles, judges, searches,
   confirms, and puts winners into the model. After 2 to 20 seconds everything born of it is looked up, and the engine,
   the judge and the workers are killed at once with SIGKILL. Where nothing new was journalled (a comparison over fresh
   pairs takes half a minute, and is one event), the next one gets ten seconds more.
2. What is left is looked at: no process of the run lives, the events that were journalled before are there byte for
   byte, the chain of hashes holds, no verdict was asked for twice, and no winner's times in the model were.
3. `kernelwright resume` takes the run up, and is killed in turn; the last one is left to finish. A run that ends sooner
   is followed by another one in a home of its own.
It goes on beyond the kills asked for until some of them fell while winners were timed in the model. Every kill is a row
of `results/live_kills.json`, with what the run was at and what its journal held.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from kernelwright.core.events import Evaluated, WinnerTried
from kernelwright.core.tree import Tree
from kernelwright.hardware.calibrate import cache_path, ceilings
from kernelwright.hardware.detect import cpu_device
from kernelwright.store.journal import Journal

RESULTS = Path(__file__).parent / "results" / "live_kills.json"
EARLIEST_S, LATEST_S, MORE_S = 2.0, 20.0, 10.0
GONE_S = 10.0
"""Runners notice a second after their parents that they are to go; a process that is here after that survived."""
FINISH_S = 900
PROGRESS = "progress.txt"
MODEL = "examples/models/transforms.py:build"
RUN = ("--top", "2", "--device", "cpu", "--author", "auto", "--processes", "3", "--max-evaluations", "14")
ROOT = Path(__file__).resolve().parents[1]
IN_MODEL, LEAST_IN_MODEL = "in the model", 4
"""Where the fewest kills fall, and how many have to: that is where a run spends the last half minute."""
PHASES = {
    IN_MODEL: ("the whole model", "comparing outputs", "timing the model"),
    "a race": ("pair ", "the clock"),
    "a verdict": ("cpp: ", "eager: ", "compiled: "),
    "before the search": ("profiling", "capturing", "measuring", "loading"),
}
"""How lines of progress begin that tell what a run is at."""


def begun(home: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a verb in a session of its own."""
    command = [sys.executable, "-m", "kernelwright", *words, "--json", "--home", str(home)]
    environment = {**os.environ, "TMPDIR": str(home / "tmp")}
    with (home / PROGRESS).open("w") as told:
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=told,
            start_new_session=True,
            cwd=home,
            env=environment,
        )


def phase(home: Path, tree: Tree) -> str:
    """Return what a run was at, by the last line it told that says so, and whether its search had ended."""
    is_over = bool(tree.quests) and all(quest.ended for quest in tree.quests.values())
    for line in reversed((home / PROGRESS).read_text(errors="replace").splitlines()):
        for name, beginnings in PHASES.items():
            if line.startswith(beginnings):
                return f"{name}, confirming" if is_over and name != IN_MODEL else name
    return "starting"


def born_of(first: int) -> list[int]:
    """Return a process and everything born of it that still has its parent."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, at = [first], 0
    while at < len(found):
        found += parents.get(found[at], [])
        at += 1
    return found


def name_of(pid: int) -> str | None:
    """Return what tells a process from a later one of the same number; None if it is gone or a corpse."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def killed(process: subprocess.Popen[bytes]) -> tuple[int, list[int]]:
    """Kill a run with everything born of it; return how many processes it had, and which survived."""
    pids = born_of(process.pid)
    names = {pid: name_of(pid) for pid in pids}
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + GONE_S
    while left := [pid for pid, name in names.items() if name is not None and name_of(pid) == name]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return len(pids), left


def folder_of(home: Path) -> Path | None:
    """Return the folder of the only run in a home, once it has a journal."""
    found = [path.parent for path in (home / "runs").glob("*/journal.db")]
    return found[0] if found else None


def lines_of(folder: Path | None) -> list[str]:
    """Return every event of a journal as its bytes on disk would be exported, its hash included."""
    return [event.model_dump_json() for event in Journal.open(folder).events()] if folder else []


def repeated(folder: Path | None) -> int:
    """Return how many verdicts, and times of a winner in the model beside the same others, were asked for again."""
    asked: Counter[object] = Counter()
    for event in Journal.open(folder).events() if folder else ():
        match event.body:
            case Evaluated(evaluation=found):
                asked[found.problem_hash, found.candidate_hash, found.profile] += 1
            case WinnerTried() as tried:
                asked[tried.problem_hash, tried.candidate_hash, tried.beside] += 1
            case _:
                pass
    return sum(count - 1 for count in asked.values())


def one_kill(
    home: Path, words: Sequence[str], after_s: float, before: list[str]
) -> tuple[dict[str, object], list[str]]:
    """Start or resume a run, kill it, and return what was found with the journal as it is now."""
    process = begun(home, words)
    with suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    ended = process.poll() is not None
    processes, survivors = (0, []) if ended else killed(process)
    folder = folder_of(home)
    after = lines_of(folder)
    tree = Journal.open(folder).tree() if folder else Tree()
    row: dict[str, object] = {
        "after_s": round(after_s, 2),
        "at": phase(home, tree),
        "ended_by_itself": ended,
        "processes_killed": processes,
        "survivors": len(survivors),
        "events_before": len(before),
        "events": len(after),
        "verdicts": sum(len(node.evaluations) for node in tree.nodes.values()),
        "prefix_is_identical": after[: len(before)] == before,
        "chain_holds": folder is None or verified(folder),
        "repeated": repeated(folder),
    }
    return row, after


def verified(folder: Path) -> bool:
    """Tell whether the chain of hashes holds, as the command line finds it."""
    command = [sys.executable, "-m", "kernelwright", "journal", "verify", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def fresh_home(place: Path, known: Path) -> Path:
    """Return a home that knows what this machine can do, so that a run starts searching at once."""
    (place / "tmp").mkdir(parents=True)
    target = cache_path(cpu_device(), place)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(cache_path(cpu_device(), known), target)
    return place


def is_enough(rows: Sequence[Mapping[str, object]], kills: int) -> bool:
    """Tell whether a run was killed so often, and while it timed its winners in the model."""
    places = [row["at"] for row in rows if not row["ended_by_itself"]]
    return len(places) >= kills and places.count(IN_MODEL) >= min(kills, LEAST_IN_MODEL)


def finished(home: Path, before: list[str]) -> dict[str, object]:
    """Let a run end, and return what its journal says then."""
    begun(home, ("resume", "last")).wait(FINISH_S)
    folder = folder_of(home)
    assert folder is not None, "a run that was resumed has a folder"
    after, tree = lines_of(folder), Journal.open(folder).tree()
    return {
        "events": len(after),
        "prefix_is_identical": after[: len(before)] == before,
        "chain_holds": verified(folder),
        "repeated": repeated(folder),
        "winners_in_the_model": sum(one.kept for one in tree.tried.values()),
        "shipped": tree.verified is not None and tree.verified.shipped,
        "ended": tree.ended.reason if tree.ended else "",
        "failed": tree.ended is None or tree.ended.failed,
    }


def main() -> None:
    """Kill, look, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    rng, start = random.Random(given.seed), ("optimize", f"{ROOT}/{MODEL}", *RUN)
    rows: list[dict[str, object]] = []
    ends: list[dict[str, object]] = []
    before: list[str] = []
    words: Sequence[str] = start
    more_s = 0.0
    with tempfile.TemporaryDirectory(prefix="live-kills-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        ceilings(cpu_device(), place / "known")
        home = fresh_home(place / "0", place / "known")
        while not is_enough(rows, given.kills):
            row, after = one_kill(home, words, rng.uniform(EARLIEST_S, LATEST_S) + more_s, before)
            more_s, before = more_s + MORE_S if after == before else 0.0, after
            rows.append({"run": len(ends), **row})
            sys.stderr.write(f"{rows[-1]}\n")
            words = ("resume", "last") if before else start
            if row["ended_by_itself"]:
                ends.append(finished(home, before))
                home, before, words = fresh_home(place / str(len(ends)), place / "known"), [], start
        if before:
            ends.append(finished(home, before))
    found = {
        "command": f"python benchmarks/live_kills.py --kills {given.kills} --seed {given.seed}",
        "run": " ".join(("kernelwright optimize", MODEL, *RUN)),
        "date": datetime.now(UTC).date().isoformat(),
        "device": cpu_device().title,
        "versions": {name: version(name) for name in ("kernelwright", "torch")}
        | {"python": platform.python_version()},
        "kills": sum(not row["ended_by_itself"] for row in rows),
        "prefixes_identical": sum(bool(row["prefix_is_identical"]) for row in rows),
        "chains_that_hold": sum(bool(row["chain_holds"]) for row in rows),
        "kills_by_phase": Counter(str(row["at"]) for row in rows if not row["ended_by_itself"]),
        "repeated": sum(int(str(row["repeated"])) for row in [*rows, *ends]),
        "survivors": sum(int(str(row["survivors"])) for row in rows),
        "ends": ends,
        "rows": rows,
    }
    given.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A real run, killed for good again and again: its journal is never rewritten, no finished verdict is asked twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kernelwright.core.events import Event
from kernelwright.store.journal import Journal

PATIENCE_S = 300.0


def begin(home: Path) -> subprocess.Popen[bytes]:
    """Start a small run of one kernel by itself."""
    # Two pairs prove nothing, so that nothing is held against torch.compile: what is shown here is the resuming.
    (home / "kernelwright.toml").write_text("hidden_shapes = 0\n")
    words = ["optimize", "--op", "rmsnorm", "--shape", "64x64 fp32", "--device", "cpu", "--author", "tuner"]
    limits = ["--budget", "40s", "--max-pairs", "2", "--max-evaluations", "3", "--threads", "1"]
    return started([*words, *limits], home)


def started(words: list[str], home: Path) -> subprocess.Popen[bytes]:
    """Start a verb in a session of its own."""
    command = [sys.executable, "-m", "kernelwright", *words, "--json", "--home", str(home)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, cwd=home
    )


def events_of(home: Path) -> list[Event]:
    runs = home / "runs"
    folders = list(runs.iterdir()) if runs.exists() else []
    if not folders or not (folders[0] / "journal.db").exists():
        return []
    return list(Journal.open(folders[0]).events())


def killed_after(process: subprocess.Popen[bytes], home: Path, count: int) -> list[Event]:
    """Kill a run as soon as its journal has so many events, and return them."""
    deadline = time.monotonic() + PATIENCE_S
    while len(events_of(home)) < count and process.poll() is None:
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.1)
    assert process.poll() is None, "it ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return events_of(home)


def test_a_run_killed_twice_goes_on_and_repeats_no_verdict(
    tmp_path: Path, calibrated: Callable[[Path], Path]
) -> None:
    first = killed_after(begin(calibrated(tmp_path)), tmp_path, 4)
    second = killed_after(started(["resume", "last"], tmp_path), tmp_path, len(first) + 3)
    assert second[: len(first)] == first
    out, _ = started(["resume", "last"], tmp_path).communicate(timeout=PATIENCE_S)
    answer = json.loads(out)
    whole = events_of(tmp_path)
    assert whole[: len(second)] == second
    tree = Journal.open(Path(answer["folder"])).tree()
    assert tree.ended is not None and not tree.ended.failed
    verdicts = Counter(
        (node.candidate.hash, verdict.profile) for node in tree.nodes.values() for verdict in node.evaluations
    )
    assert set(verdicts.values()) == {1}
    assert all(quest.ended for quest in tree.quests.values())
    for name in ("report.html", "report.md", "results.tsv", "progress.png"):
        assert (Path(answer["folder"]) / name).stat().st_size > 100

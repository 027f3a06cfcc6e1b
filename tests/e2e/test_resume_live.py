"""A real run, killed for good again and again, its device taken: no event is rewritten, no verdict asked twice."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernelwright.core.errors import DeviceBusy
from kernelwright.core.events import Evaluated, Event, RunEnded
from kernelwright.core.messages.judge import JudgeSettings
from kernelwright.engine.app import resume
from kernelwright.engine.service import JudgeClient
from kernelwright.store.journal import Journal

PATIENCE_S = 300.0
HOLD = """
import time
from kernelwright.hardware.detect import cpu_device
from kernelwright.hardware.lock import DeviceLock
with DeviceLock(cpu_device()):
    print("held", flush=True)
    time.sleep(600)
"""


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


@contextmanager
def device_taken() -> Iterator[int]:
    """Yield the number of another process that times on the CPU and does not stop."""
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        try:
            yield holder.pid
        finally:
            holder.kill()


def refused_by_a_taken_device(home: Path) -> list[Event]:
    """Resume a run while somebody else has the device, and return its events once it has given up waiting."""
    (folder,) = (home / "runs").iterdir()
    settings = JudgeSettings(
        threads=1,
        max_pairs=2,
        alpha=0.001,
        hidden_shapes=0,
        device_wait_s=0.5,
        cache_folder=str(home / "cache" / "builds"),
        blob_folder=str(folder / "blobs"),
    )
    with device_taken() as pid:
        judge = JudgeClient(settings, lambda _: None)
        try:
            with pytest.raises(DeviceBusy, match=f"in use by process {pid}"):
                resume(folder, home, lambda _: None, judge=judge)
        finally:
            judge.close()
    events = events_of(home)
    assert isinstance(ended := events[-1].body, RunEnded)
    assert ended.failed and f"process {pid}" in ended.reason
    return events


def test_a_run_killed_twice_and_refused_its_device_goes_on_and_repeats_no_verdict(
    tmp_path: Path, calibrated: Callable[[Path], Path]
) -> None:
    first = killed_after(begin(calibrated(tmp_path)), tmp_path, 4)
    second = killed_after(started(["resume", "last"], tmp_path), tmp_path, len(first) + 3)
    assert second[: len(first)] == first
    third = refused_by_a_taken_device(tmp_path)
    assert third[: len(second)] == second
    assert any(isinstance(event.body, Evaluated) for event in third), (
        "there is something that could be repeated"
    )
    out, _ = started(["resume", "last"], tmp_path).communicate(timeout=PATIENCE_S)
    answer = json.loads(out)
    whole = events_of(tmp_path)
    assert whole[: len(third)] == third
    tree = Journal.open(Path(answer["folder"])).tree()
    assert tree.ended is not None and not tree.ended.failed
    verdicts = Counter(
        (node.candidate.hash, verdict.profile) for node in tree.nodes.values() for verdict in node.evaluations
    )
    assert set(verdicts.values()) == {1}
    assert all(quest.ended for quest in tree.quests.values())
    for name in ("report.html", "report.md", "results.tsv", "progress.png"):
        assert (Path(answer["folder"]) / name).stat().st_size > 100

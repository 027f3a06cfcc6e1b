"""The tools of compute-sanitizer on one job, played by a script: side by side, in a fixed order, none left over."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from kernelwright.backends import _compute_sanitizer
from kernelwright.core.verdict import Status
from kernelwright.judge.stages import device_sanitizer
from kernelwright.judge.stages.device_sanitizer import FOUND, TOOLS, watched

PATIENCE_S = 30.0
SOON_S = 3.0
MEET = 'touch here.$tool; while [ "$(ls here.* | wc -l)" -lt 3 ]; do sleep 0.05; done'
"""Nobody goes on before all three have come: one after the other they would wait for ever."""
STAY = "sleep 600 & echo $! > started.$tool; wait"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "compute-sanitizer"


def play(script: Path, **parts: str) -> str:
    """Write a tool that does one thing under each of its names, and meets the others first."""
    cases = "\n".join(f"{name}) {words} ;;" for name, words in parts.items())
    find = 'while [ "$1" != --tool ]; do shift; done; tool=$2'
    script.write_text(f"#!/bin/sh\n{find}\n{MEET}\ncase $tool in\n{cases}\nesac\n")
    script.chmod(0o755)
    return str(script)


def is_running(pid: int) -> bool:
    """Tell whether a process lives; one that nobody has asked after yet is dead too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_tools_are_at_work_at_the_same_time(script: Path, tmp_path: Path) -> None:
    assert watched(play(script), tmp_path) == (3, None)
    assert sorted(path.name for path in tmp_path.glob("here.*")) == [f"here.{name}" for name in sorted(TOOLS)]


def test_the_first_tool_of_the_list_that_finds_something_is_told_however_late_it_ends(
    script: Path, tmp_path: Path
) -> None:
    report = f'echo "===== COMPUTE-SANITIZER"; echo "===== Error: $tool saw it"; exit {FOUND}'
    tool = play(script, racecheck=f"sleep 0.5; {report}", initcheck=report)
    checked, failure = watched(tool, tmp_path)
    assert checked == 2
    assert (failure.status, failure.reason) == (Status.SANITIZER, "racecheck: Error: racecheck saw it")


def test_a_tool_that_dies_is_told_with_its_last_words(script: Path, tmp_path: Path) -> None:
    tool = play(script, memcheck="echo no such device >&2; exit 3")
    checked, failure = watched(tool, tmp_path)
    assert checked == 1
    assert (failure.status, failure.reason) == (Status.CRASHED, "under memcheck, code 3: no such device")


@pytest.mark.parametrize("end", [f"exit {FOUND}", "sleep 600"], ids=["found", "too-late"])
def test_nothing_that_the_tools_started_outlives_the_stage(
    script: Path, tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_late = end.startswith("sleep")
    monkeypatch.setattr(device_sanitizer, "TOOL_SECONDS", SOON_S if is_late else PATIENCE_S)
    wait = 'while [ "$(ls started.* 2>/dev/null | wc -l)" -lt 2 ]; do sleep 0.05; done'
    tool = play(script, memcheck=f"{wait}; {end}", racecheck=STAY, initcheck=STAY)
    began = time.monotonic()
    checked, failure = watched(tool, tmp_path)
    assert time.monotonic() - began < PATIENCE_S
    assert checked == 1
    assert failure.status is (Status.TIMED_OUT if is_late else Status.SANITIZER)
    pids = [int(path.read_text()) for path in tmp_path.glob("started.*")]
    deadline = time.monotonic() + PATIENCE_S  # killed with their group, and buried by whoever inherits them
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(pids) == 2 and not any(map(is_running, pids))


def test_a_tool_dies_with_the_judge_that_is_killed(script: Path, tmp_path: Path) -> None:
    # A tool's target is its child: what is killed with the tool alone would leave it.
    tool = play(script, **dict.fromkeys(TOOLS, "sleep 600 & echo $! > $tool.pid; wait"))
    if (judge := os.fork()) == 0:
        watched(tool, tmp_path)
        os._exit(0)
    deadline = time.monotonic() + PATIENCE_S
    while len(pids := [int(text) for path in tmp_path.glob("*.pid") if (text := path.read_text())]) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(judge, 9)
    os.waitpid(judge, 0)
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, pids))


def test_a_tool_that_died_among_the_others_is_asked_again_alone(script: Path, tmp_path: Path) -> None:
    once = "if mkdir died 2>/dev/null; then echo no memory >&2; exit 2; fi"
    tool = play(script, racecheck=once)
    assert watched(tool, tmp_path) == (3, None)
    found = play(script, racecheck=f"rmdir died 2>/dev/null; {once}", initcheck=f"exit {FOUND}")
    checked, failure = watched(found, tmp_path)
    assert (checked, failure.status) == (2, Status.CRASHED), (
        "alone it died again, and the third was not asked"
    )


def test_where_no_toolkit_is_installed_the_package_brings_one_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(_compute_sanitizer, "PLACES", ())
    tool = _compute_sanitizer.program()
    assert tool is not None
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, "Compute Sanitizer" in done.stdout) == (0, True), done.stderr

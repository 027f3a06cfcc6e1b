"""`kernelwright report` as a user meets it: four files from a journal, whatever state the run is in."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kernelwright.cli.screen import ExitCode
from kernelwright.core.candidate import Author, Candidate, Origin
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Decided,
    Evaluated,
    Noted,
    ProblemFound,
    RunEnded,
    RunStarted,
)
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Evaluation, Profile, Stage, StageResult, Status
from kernelwright.engine import gate
from kernelwright.ops import rmsnorm
from kernelwright.store.journal import Journal

DEVICE = Device(kind=DeviceKind.CPU, name="test", arch="x86_64", units=2, memory_bytes=1 << 30)
FILES = ["results.tsv", "progress.png", "report.md", "report.html"]
START = RunStarted(config={"model": "m.py:build"}, versions={"torch": "2.13"}, device=DEVICE)


def kernelwright(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KERNELWRIGHT_HOME": str(home)}
    command = [sys.executable, "-m", "kernelwright", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home, check=False)


def written(home: Path, *bodies: Body) -> Path:
    """Write a journal, a second between its events, and return the run's folder."""
    folder = home / "runs" / "20260101-000000-aaaaaa"
    folder.mkdir(parents=True)
    times = iter(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second) for second in range(1000))
    with Journal.create(folder, folder.name, lambda: next(times)) as journal:
        for body in bodies:
            journal.append([body])
    return folder


def rejected(problem: Problem, source: str, note: str) -> list[Body]:
    """Return the events of a candidate that the judge refused."""
    candidate = Candidate(
        op=problem.op,
        backend="cpp",
        source=source,
        author=Author(name="mover"),
        note=note,
        origin=Origin.AUTHOR,
    )
    failure = StageResult(
        stage=Stage.GUARDS, passed=False, seconds=0.1, checked=1, reason="<b>no</b> kernel_fn"
    )
    verdict = Evaluation(
        candidate_hash=candidate.hash,
        problem_hash=problem.hash,
        device_hash=DEVICE.hash,
        profile=Profile.KEEP,
        status=Status.REFUSED,
        stages=(failure,),
    )
    return [
        CandidateProposed(problem_hash=problem.hash, candidate=candidate),
        Evaluated(evaluation=verdict),
        Decided(decision=gate.rejected(verdict)),
    ]


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(op="rmsnorm", cases=(rmsnorm.public_cases()[0],), device=DEVICE, share=0.4)


def test_run_with_only_rejected_candidates_gets_all_four_files(tmp_path: Path, problem: Problem) -> None:
    bodies = [
        START,
        ProblemFound(problem=problem),
        *rejected(problem, "int x;", "</td><script>alert(1)</script>"),
    ]
    folder = written(tmp_path, *bodies, Noted(text="one thing"), RunEnded(reason="nothing left to try"))
    done = kernelwright("report", "last", "--json", home=tmp_path)
    assert done.returncode == ExitCode.OK, done.stderr
    answer = json.loads(done.stdout)
    assert answer["files"] == [str(folder / name) for name in FILES]
    assert answer["headline"] == (
        f"Nothing was proven faster than the baselines on {problem.cases[0].label}, so nothing is installed."
    )
    assert answer["missing"] == ""
    assert (folder / "progress.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page = (folder / "report.html").read_text()
    assert "&lt;/td&gt;&lt;script&gt;alert(1)" in page and "<script" not in page
    assert "&lt;b&gt;no&lt;/b&gt; kernel_fn" in page and "<b>no</b>" not in page
    assert "nothing left to try" in page and "one thing" in page
    head, row = [line.split("\t") for line in (folder / "results.tsv").read_text().splitlines()]
    told = dict(zip(head, row, strict=True))
    assert (told["tag"], told["correctness"], told["author"]) == ("revert", "refused", "mover")
    assert told["time"] == "2026-01-01T00:00:04+00:00"
    assert told["reason"] == "refused at guards: <b>no</b> kernel_fn"


@pytest.mark.parametrize("bodies", [(), (START,), (START, RunEnded(reason="stopped"), START)])
def test_run_that_has_barely_begun_has_its_reports(tmp_path: Path, bodies: tuple[Body, ...]) -> None:
    folder = written(tmp_path, *bodies)
    done = kernelwright("report", str(folder), home=tmp_path)
    assert done.returncode == ExitCode.OK, done.stderr
    first, *files = done.stdout.strip().splitlines()
    assert first == "The run has not ended; nothing is proven faster so far, and nothing is installed."
    assert files == [str(folder / name) for name in FILES]
    assert {path.name for path in folder.iterdir()} >= set(FILES)


def test_reports_are_made_anew_and_leave_nothing_else_behind(tmp_path: Path) -> None:
    folder = written(tmp_path, START)
    kernelwright("report", home=tmp_path)
    before = {path.name for path in folder.iterdir()}
    with Journal.open_for_writing(folder) as journal:
        journal.append([RunEnded(reason="the disk was full")])
    kernelwright("report", home=tmp_path)
    assert {path.name for path in folder.iterdir()} == before
    assert "the disk was full" in (folder / "report.md").read_text()


def test_unknown_run_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = kernelwright("report", "nosuch", home=tmp_path)
    assert done.returncode == ExitCode.MISTAKE
    assert done.stderr.startswith("error: ") and len(done.stderr.strip().splitlines()) == 1

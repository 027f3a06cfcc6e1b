"""Programs as a crew: drafts that race, and what is left of them when nobody waits any more."""

import os
import shlex
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kernelwright.core.config import RunConfig
from kernelwright.core.events import (
    Body,
    ExpansionAnswered,
    ExpansionAsked,
    ProblemFound,
    RunEnded,
    RunStarted,
)
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Status
from kernelwright.engine import loop
from kernelwright.engine.crew import can_draft, crew_of
from kernelwright.engine.run import Run
from kernelwright.store.journal import Journal
from kernelwright.testing.recorded_judge import RecordedClient, RecordedJudge, RecordedSeeds
from tests.unit.growing import journalled
from tests.unit.landscapes import SOURCE, valley

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SLEEPS = f"""
import json, os, signal, subprocess, sys, time
brief = json.load(sys.stdin)
marks, right = sys.argv[1], {SOURCE!r}
def note():
    open(os.path.join(marks, str(os.getpid())), "w")
def sleep():
    note()
    time.sleep(600)
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork() or os.setsid()
    sleep()
def answer(source):
    print(json.dumps({{"source": source, "backend": "cpp"}}))
"""
DRAFTS = (
    SLEEPS
    + """
place = brief["seed"] % 3
if place == 0:
    while len(os.listdir(marks)) < 3:  # all others are at work
        time.sleep(0.01)
    answer(right)
elif place == 1:
    sleep()
else:
    deaf()
"""
)


def program(folder: Path, code: str) -> tuple[str, Path]:
    """Return the author that a program is, and the folder in which its processes leave their numbers."""
    marks = folder / "marks"
    marks.mkdir()
    (folder / "author.py").write_text(code)
    return f"command:{shlex.join([sys.executable, '-S', str(folder / 'author.py'), str(marks)])}", marks


def carry_out(folder: Path, make, author: str, **changes: object) -> Tree:
    """Carry out the run of a landscape with programs as its authors."""
    landscape = valley(make.problem())
    journal, tree, record = journalled(folder, lambda: NOON)
    fields = {"op": "rmsnorm", "strategy": "greedy", "author": author, "escalations": 0, "budget_s": 1e9}
    config = RunConfig(**(fields | changes))
    seeds = RecordedSeeds(("cpp",), 1, landscape)
    run = Run(config, landscape.problem.device, 1, folder, record, tree, lambda _: None, seeds)
    run.crew = crew_of(config)
    started = RunStarted(config=config.model_dump(mode="json"), versions={}, device=run.device)
    record([started, ProblemFound(problem=landscape.problem)])
    with journal:
        loop.optimize(run, RecordedClient(RecordedJudge(landscape), tree))
    return tree


def running(marks: Path) -> list[int]:
    """Return which of the processes that left their numbers are alive."""
    found = []
    for path in marks.iterdir():
        try:
            stat = Path(f"/proc/{path.name}/stat").read_text()
        except OSError:
            continue
        if stat.rpartition(")")[2].split()[0] != "Z":
            found.append(int(path.name))
    return found


def bodies_of(folder: Path, kind: type) -> list[Body]:
    return [one for one in Journal.open(folder).bodies() if isinstance(one, kind)]


def test_a_program_can_draft_and_a_keyless_author_cannot():
    assert can_draft(crew_of(RunConfig(author="tuner", beside=("command:true",))))
    assert not can_draft(crew_of(RunConfig(author="auto")))


def test_the_first_certified_draft_ends_the_other_programs(make, tmp_path):
    author, marks = program(tmp_path, DRAFTS)
    folder, began = tmp_path / "run", time.monotonic()
    tree = carry_out(folder, make, author, seeds=False, drafts=3, max_expansions=3)
    ended = time.monotonic()
    assert ended - began < 60 and len(list(marks.iterdir())) == 3
    while running(marks):
        assert time.monotonic() - ended < 10, "half a second after they were asked to end, they are killed"
        time.sleep(0.02)
    answers = bodies_of(folder, ExpansionAnswered)
    assert [one.cancelled for one in answers] == [False, True, True]
    assert {one.reason for one in answers[1:]} == {"another draft was certified first"}
    statuses = [node.evaluations[0].status for node in tree.nodes.values() if node.expansion]
    assert statuses == [Status.ACCEPTED]
    assert tree.ended is not None and not tree.ended.failed


@pytest.fixture(params=[False, True], ids=["", "calls restarted"])
def restarted(request):
    """Have the system restart what a signal interrupts, as a library may ask for: no wait ends by itself then."""
    # A shell that starts tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.siginterrupt(signal.SIGINT, not request.param)
    yield
    signal.signal(signal.SIGINT, before)
    signal.siginterrupt(signal.SIGINT, True)


@pytest.mark.usefixtures("restarted")
@pytest.mark.parametrize("crew", [1, 2], ids=["alone", "two"])
def test_programs_of_an_interrupted_run_are_gone_when_it_ends(make, tmp_path, crew):
    author, marks = program(tmp_path, SLEEPS + "deaf()")
    folder, told = tmp_path / "run", list[float]()

    def interrupt() -> None:
        while len(list(marks.iterdir())) < 2 * crew:
            time.sleep(0.01)
        told.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        carry_out(folder, make, author, crew=crew, max_expansions=4)
    assert time.monotonic() - told[0] < 20 and running(marks) == []
    assert bodies_of(folder, ExpansionAsked) and not bodies_of(folder, ExpansionAnswered)
    assert not bodies_of(folder, RunEnded)

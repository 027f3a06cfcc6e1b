"""A nursery that dies while somebody is timed: a status of the candidate, never an error, and the judge works on."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.core.candidate import Candidate
from kernelwright.core.messages.judge import Compare, Disqualified, JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Comparison, Outcome, Profile, Stage, Status
from kernelwright.engine.service import JudgeClient
from kernelwright.judge.evaluate import Judge
from tests.cheats.specimen import honest_source
from tests.cpu.conftest import cpp

SOURCE = honest_source("rmsnorm")
PAIRS = 3


class Killer:
    """Listens to a judge and kills its nursery when it says something."""

    def __init__(self) -> None:
        self.word = ""
        self.judge: Judge | None = None

    def __call__(self, text: str) -> None:
        if self.word and self.word in text:
            assert self.judge is not None
            self.word = ""
            os.killpg(self.judge.nurseries.started["plain"].process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def killer(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    home: Path = tmp_path_factory.mktemp("judge")
    settings = JudgeSettings(
        threads=1,
        max_pairs=PAIRS,
        alpha=0.001,
        hidden_shapes=1,
        gate_pairs=0,
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
    )
    found = Killer()
    found.judge = Judge(settings, found)
    yield found
    found.judge.close()


def variant(number: int) -> Candidate:
    """Return the same kernel under another hash."""
    return cpp(f"{SOURCE}// {number}\n")


def compared(killer: Killer, problem: Problem, *challengers: Candidate) -> list[Comparison | Disqualified]:
    assert killer.judge is not None
    request = Compare(problem=problem, incumbent=variant(0), challengers=challengers)
    return list(killer.judge.compare(request).results)


def test_a_challenger_whose_nursery_dies_while_it_is_compared_has_crashed(
    killer: Killer, problem: Problem
) -> None:
    killer.word = "pair 1:"
    (found,) = compared(killer, problem, variant(1))
    assert isinstance(found, Disqualified)
    assert (found.candidate_hash, found.status) == (variant(1).hash, Status.CRASHED)
    assert "took its parent process down" in found.reason


def test_of_several_each_goes_on_alone_and_keeps_its_evidence(killer: Killer, problem: Problem) -> None:
    killer.word = "pair 2:"
    found = compared(killer, problem, variant(1), variant(2))
    assert killer.word == ""
    for one in found:
        assert isinstance(one, Comparison)
        assert (one.outcome, one.pairs) == (Outcome.NOT_PROVEN, PAIRS)


def test_a_candidate_whose_nursery_dies_while_it_is_certified_has_crashed(
    killer: Killer, problem: Problem
) -> None:
    assert killer.judge is not None
    killer.word = f"cpp: {Stage.TIMING.value}"
    found = killer.judge.evaluate(problem, variant(1), Profile.KEEP)
    assert (found.status, found.timing) == (Status.CRASHED, None)
    assert (found.stages[-1].stage, found.stages[-1].passed) == (Stage.TIMING, False)
    assert isinstance(compared(killer, problem, variant(1))[0], Comparison)


def test_what_cannot_be_begun_ahead_does_not_end_the_judge(judge: JudgeClient, problem: Problem) -> None:
    before = judge.child.process.pid
    judge.prepare(problem, variant(1).model_copy(update={"backend": "missing"}))
    found = judge.evaluate(problem, variant(1), Profile.QUICK)
    assert (found.status, judge.child.process.pid) == (Status.ACCEPTED, before)

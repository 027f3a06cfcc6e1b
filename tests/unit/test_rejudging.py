"""A run that judges winners again is about them alone, also when it was killed and is taken up again."""

import os
import signal
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.device import DeviceKind
from kernelwright.core.events import Body, CandidateProposed, Decided, ProblemFound, RunStarted
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Evaluation, Profile
from kernelwright.engine import gate, loop, titles
from kernelwright.engine.app import begin, resume
from kernelwright.engine.foreign_runs import FoundRun
from kernelwright.engine.rejudging import Question, asked_again
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds
from kernelwright.store.journal import Journal
from tests.unit.test_loop import TableJudge

WINNER_US = 40.0
"""Every other candidate takes 100 us."""


class Killed(TableJudge):
    """A judge whose engine is killed when the first kernel of an author is to be judged."""

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        if candidate.origin is Origin.AUTHOR:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().evaluate(problem, candidate, profile)


@pytest.fixture
def winner(make) -> Candidate:
    return make.candidate("int kernel_fn(); // the winner")


@pytest.fixture
def times_us(winner: Candidate) -> dict[str, float]:
    times = defaultdict(lambda: 100.0)
    times[winner.hash] = WINNER_US
    return times


@pytest.fixture
def question(make, winner: Candidate, times_us: dict[str, float], tmp_path: Path) -> Question:
    """Return what judging the winner of a run with a search again means."""
    problem, tree = make.problem(device=make.device(kind=DeviceKind.CPU)), Tree()
    judge = TableJudge(make, times_us)

    def record(bodies: Sequence[Body]) -> None:
        for body in bodies:
            tree.apply(body)

    config = RunConfig(op="rmsnorm", backend="cpp", author="mover", beside=("tuner",), threads=1)
    run = Run(config, problem.device, 1, tmp_path, record, tree, lambda _: None, Seeds((), 1))
    started = RunStarted(config=config.model_dump(mode="json"), versions={}, device=problem.device)
    record([started, ProblemFound(problem=problem)])
    verdict = titles.evaluate(run, judge, problem, make.baseline())
    record([Decided(decision=gate.first_of_problem(verdict))])
    record([CandidateProposed(problem_hash=problem.hash, candidate=winner)])
    loop.decide(run, judge, problem, [tree.nodes[problem.hash, winner.hash]])
    loop.decide(run, judge, problem, [tree.nodes[problem.hash, winner.hash]])
    found = FoundRun(tmp_path / "runs" / "before", tmp_path)
    return asked_again("before", tree, found, lambda _: None)


def test_a_killed_rejudging_that_is_resumed_judges_the_winners_and_nothing_else(
    make, question: Question, winner: Candidate, times_us: dict[str, float], tmp_path: Path
) -> None:
    if (child := os.fork()) == 0:
        killed = replace(question.beginning(), judge=Killed(make, times_us), run_id="again")
        begin(question.config, tmp_path, killed, lambda _: None)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    folder = tmp_path / "runs" / "again"
    left = Journal.open(folder).tree()
    assert left.ended is None
    assert [node.candidate.origin for node in left.nodes.values() if node.evaluations] == [Origin.BASELINE]

    resume(folder, tmp_path, lambda _: None, judge=TableJudge(make, times_us))
    tree = Journal.open(folder).tree()
    (problem,) = tree.problems.values()
    authored = [node for node in tree.nodes.values() if node.candidate.origin is Origin.AUTHOR]
    assert [node.candidate for node in authored] == [winner]
    assert tree.best == {problem.hash: winner.hash}
    assert [one.profile for one in authored[0].evaluations] == [Profile.KEEP, Profile.SHIP]
    assert tree.ended is not None and not tree.ended.failed


def test_settings_of_a_rejudging_ask_nobody_for_a_kernel(question: Question) -> None:
    config = question.config
    assert (config.author, config.beside, config.seeds, config.max_expansions) == ("none", (), False, 0)

"""A run that is killed goes on where its journal ends: the same events, the same next decision, nothing twice."""

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kernelwright.agents import auto
from kernelwright.core.config import RunConfig
from kernelwright.core.events import Event, ProblemEnded, ProblemFound, RunStarted, SearchEscalated
from kernelwright.core.landscape import Landscape
from kernelwright.core.ports import Agent
from kernelwright.core.verdict import Profile
from kernelwright.engine import loop
from kernelwright.engine.run import Run
from kernelwright.engine.sittings import sit_down, sittings, spent
from kernelwright.store.journal import Journal
from kernelwright.testing.recorded_judge import RecordedClient, RecordedJudge, RecordedSeeds
from tests.unit.growing import journalled
from tests.unit.landscapes import valley

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STRATEGIES = ("greedy", "beam", "mcts", "evolve")


def stopped() -> datetime:
    """Return the same moment whenever it is asked: every byte of two journals can be compared."""
    return NOON


def carry_out(
    folder: Path,
    landscape: Landscape,
    strategy: str,
    kill_after: int | None = None,
    author: Agent | None = None,
    client: type[RecordedClient] = RecordedClient,
    budget_s: float = 1e9,
) -> None:
    """Begin the run of a landscape, or take it up; killed for good after so many more appends."""
    journal, tree, record = journalled(folder, stopped, kill_after)
    config = RunConfig(op="rmsnorm", strategy=strategy, patience=3, budget_s=budget_s, workers=2)
    seeds = RecordedSeeds(("cpp",), 1, landscape)
    run = Run(config, landscape.problem.device, 1, folder, record, tree, lambda _: None, seeds)
    run.author = author or auto.author("tuner")
    if tree.started is None:
        started = RunStarted(config={}, versions={}, device=landscape.problem.device)
        record([started, ProblemFound(problem=landscape.problem)])
    with journal:
        loop.optimize(run, client(RecordedJudge(landscape), tree))


def in_a_child(*arguments: object) -> int:
    """Carry out in a process of its own, and return how it ended."""
    if (child := os.fork()) == 0:
        carry_out(*arguments)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def events_of(folder: Path) -> list[Event]:
    return list(Journal.open(folder).events())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_killed_again_and_again_has_the_journal_of_one_that_was_not(
    strategy: str, make, tmp_path: Path
) -> None:
    landscape = valley(make.problem())
    carry_out(tmp_path / "whole", landscape, strategy)
    whole = events_of(tmp_path / "whole")
    assert len(whole) > 40
    assert any(isinstance(event.body, SearchEscalated) for event in whole)
    rng, kills = random.Random(strategy), 0
    for number in range(2):
        folder = tmp_path / f"killed-{number}"
        while in_a_child(folder, landscape, strategy, rng.randrange(1, 9)) != 0:
            kills += 1
            found = events_of(folder)
            assert found == whole[: len(found)]
        assert events_of(folder) == whole
    assert kills >= 8


def test_no_finished_evaluation_is_repeated_and_why_the_search_stopped_is_told(make, tmp_path: Path) -> None:
    landscape = valley(make.problem())
    in_a_child(tmp_path / "run", landscape, "mcts", 12)
    carry_out(tmp_path / "run", landscape, "mcts")
    tree = Journal.open(tmp_path / "run").tree()
    for node in tree.nodes.values():
        profiles = [verdict.profile for verdict in node.evaluations]
        assert len(set(profiles)) == len(profiles)
        assert len(profiles) <= 1 + (Profile.SHIP in profiles)
    (quest,) = tree.quests.values()
    assert isinstance(quest.ended, ProblemEnded)
    assert (quest.ended.rule, quest.level) == ("stuck", 2)
    assert tree.ended is not None


def test_a_search_finds_the_lowest_point_of_a_valley(make, tmp_path: Path) -> None:
    landscape = valley(make.problem())
    carry_out(tmp_path / "run", landscape, "mcts")
    tree = Journal.open(tmp_path / "run").tree()
    best = tree.nodes[landscape.problem.hash, tree.best[landscape.problem.hash]].candidate
    assert best.choices[-1].values == {"UNROLL": 8, "BLOCK": 128, "two_pass": True}


def test_time_nobody_sat_there_is_not_spent(make, tmp_path: Path) -> None:
    problem = make.problem()
    bodies = [ProblemFound(problem=problem), ProblemEnded(problem_hash=problem.hash, rule="time", reason="")]
    at = [NOON + timedelta(seconds=5), NOON + timedelta(hours=10, seconds=2)]
    events = [Event(seq=seq, at=at[seq], body=body, hash="") for seq, body in enumerate(bodies)]
    sit_down(tmp_path, 0, NOON)
    sit_down(tmp_path, 1, NOON + timedelta(hours=10))
    found = spent(events, sittings(tmp_path))
    assert (found.seconds, found.by_problem, found.longest) == (7.0, {problem.hash: 7.0}, 5.0)
    assert spent(events, {}).seconds == 36000 - 3

"""What a run does when the world breaks: it says so, loses nothing, and can be taken up again."""

import os
import resource
import sys
from pathlib import Path

import pytest

from kernelwright.agents import command
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.errors import DiskFull, ServiceDied
from kernelwright.core.events import ExpansionAnswered, RunEnded
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Evaluation, Profile
from kernelwright.store.journal import Journal
from kernelwright.testing.recorded_judge import RecordedClient
from tests.unit.landscapes import valley
from tests.unit.test_resume import carry_out, events_of


def test_an_author_that_returns_garbage_ends_the_search_and_nothing_else(make, tmp_path: Path) -> None:
    garbage = command.author(f"{sys.executable} -c \"print('%PDF-1.7 garbage')\"")
    carry_out(tmp_path / "run", valley(make.problem()), "greedy", author=garbage)
    tree = Journal.open(tmp_path / "run").tree()
    answers = [
        event.body for event in events_of(tmp_path / "run") if isinstance(event.body, ExpansionAnswered)
    ]
    assert len(answers) >= 9
    assert all("JSON" in one.reason and not one.candidates for one in answers)
    (quest,) = tree.quests.values()
    assert quest.ended is not None
    assert quest.ended.rule == "stuck"
    assert tree.ended is not None and not tree.ended.failed
    held = tree.titles[next(iter(tree.problems))]
    assert len(held) == 2, "the seed is judged and kept whatever the author does"


def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(make, tmp_path: Path) -> None:
    landscape, folder = valley(make.problem()), tmp_path / "run"
    carry_out(tmp_path / "whole", landscape, "mcts")
    whole = events_of(tmp_path / "whole")
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, resource.RLIM_INFINITY))
        try:
            carry_out(folder, landscape, "mcts")
        except DiskFull:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    left = events_of(folder)
    assert 0 < len(left) < len(whole)
    assert left == whole[: len(left)]
    carry_out(folder, landscape, "mcts")
    assert events_of(folder) == whole


class Vanishing(RecordedClient):
    """A judge whose device is gone at the second kernel of an author."""

    def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
        """Return the recorded verdict, while there is a device."""
        authors = [one for one in self.tree.nodes.values() if one.candidate.origin is Origin.AUTHOR]
        if len(authors) >= 2:
            raise ServiceDied("judge", "cuda:0 is lost: unspecified launch failure")
        return super().evaluate(problem, candidate, profile)


def test_a_vanished_device_ends_the_run_with_its_name_and_the_rest_is_done_when_it_is_back(
    make, tmp_path: Path
) -> None:
    landscape, folder = valley(make.problem()), tmp_path / "run"
    with pytest.raises(ServiceDied, match="cuda:0 is lost"):
        carry_out(folder, landscape, "mcts", client=Vanishing)
    before = events_of(folder)
    assert isinstance(before[-1].body, RunEnded)
    assert before[-1].body.failed
    assert "cuda:0 is lost" in before[-1].body.reason
    carry_out(folder, landscape, "mcts")
    after = events_of(folder)
    assert after[: len(before)] == before
    tree = Journal.open(folder).tree()
    assert tree.ended is not None and not tree.ended.failed
    best = tree.nodes[landscape.problem.hash, tree.best[landscape.problem.hash]].candidate
    assert best.choices[-1].values == {"UNROLL": 8, "BLOCK": 128, "two_pass": True}

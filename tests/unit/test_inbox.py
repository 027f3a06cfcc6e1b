"""What others submit to a run is judged like any candidate; what is no candidate is put aside with its reason."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.agents import auto
from kernelwright.core.brief import Proposal
from kernelwright.core.candidate import Author, Origin, ParamChoice
from kernelwright.core.config import RunConfig
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    ModelVerified,
    Noted,
    ProblemFound,
    RunEnded,
    RunStarted,
    WinnerTried,
)
from kernelwright.core.landscape import Landscape
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Status
from kernelwright.engine import inbox, loop
from kernelwright.engine.run import Run
from kernelwright.testing.recorded_judge import RecordedClient, RecordedJudge, RecordedSeeds
from tests.unit.landscapes import SOURCE, valley

LOWEST = {"UNROLL": 8, "BLOCK": 128, "two_pass": True}
WRONG = {"UNROLL": 32, "BLOCK": 512, "two_pass": True}


@dataclass
class Told:
    """A run in memory, all it journalled, and whether it is to be killed after an append."""

    folder: Path
    landscape: Landscape
    author: str = ""
    bodies: list[Body] = field(default_factory=list)
    deadly: type | None = None

    def __post_init__(self) -> None:
        problem = self.landscape.problem
        self.record(
            [RunStarted(config={}, versions={}, device=problem.device), ProblemFound(problem=problem)]
        )

    def record(self, bodies: Sequence[Body]) -> None:
        self.bodies += bodies
        if self.deadly and any(isinstance(body, self.deadly) for body in bodies):
            raise KeyboardInterrupt

    def tree(self) -> Tree:
        found = Tree()
        for body in self.bodies:
            found.apply(body)
        return found

    def run(self, tree: Tree | None = None) -> Run:
        """Return the run as a fresh process would find it."""
        tree = tree or self.tree()

        def record(bodies: Sequence[Body]) -> None:
            self.record(bodies)
            for body in bodies:
                tree.apply(body)

        config = RunConfig(op="rmsnorm", strategy="greedy", patience=3, budget_s=1e9)
        seeds = RecordedSeeds(("cpp",), 1, self.landscape)
        run = Run(config, self.landscape.problem.device, 1, self.folder, record, tree, lambda _: None, seeds)
        run.author = auto.author(self.author) if self.author else None
        return run

    def carry_out(self) -> Tree:
        run = self.run()
        loop.optimize(run, RecordedClient(RecordedJudge(self.landscape), run.tree))
        return run.tree


def proposal(values: dict[str, Any] = LOWEST, source: str = SOURCE, backend: str = "cpp") -> Proposal:
    choices = (ParamChoice(values=values),)
    return Proposal(
        source=source, backend=backend, author=Author(name="anna"), note="by hand", choices=choices
    )


@pytest.fixture
def told(make, tmp_path: Path) -> Told:
    return Told(tmp_path, valley(make.problem()))


def submitted(tree: Tree) -> list[Any]:
    return [node for node in tree.nodes.values() if node.candidate.author.name == "anna"]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "inbox").rglob("*") if path.is_file())


def test_a_submission_is_judged_and_can_win(told: Told) -> None:
    key = told.landscape.problem.hash
    inbox.drop(told.folder, key, proposal())
    tree = told.carry_out()
    (node,) = submitted(tree)
    assert tree.best[key] == node.candidate.hash
    assert (node.candidate.origin, node.candidate.note) == (Origin.AUTHOR, "by hand")
    assert node.candidate.author == Author(name="anna", detail="submitted")
    assert [verdict.profile.value for verdict in node.evaluations] == ["keep", "ship"]
    assert files(told.folder) == []


def test_its_authors_words_are_one_bounded_line_that_steers_no_terminal(told: Told) -> None:
    author = Author(name="\x1b[31manna\n", detail="x" * 500)
    words = {"author": author, "note": "first\nsecond\x07 " + "y" * 9000}
    inbox.drop(told.folder, told.landscape.problem.hash, proposal().model_copy(update=words))
    (node,) = [one for one in told.carry_out().nodes.values() if "anna" in one.candidate.author.name]
    found = node.candidate.author
    assert (found.name, found.detail) == ("\ufffd[31manna", f"submitted {'x' * inbox.MAX_NAME}")
    assert (
        node.candidate.note.startswith("first second\ufffd yyy")
        and len(node.candidate.note) == inbox.MAX_NOTE
    )


def test_a_submission_that_computes_something_else_is_reverted_with_the_judges_reason(told: Told) -> None:
    inbox.drop(told.folder, told.landscape.problem.hash, proposal(WRONG))
    (node,) = submitted(told.carry_out())
    assert node.evaluations[-1].status is Status.WRONG
    assert node.decision is not None
    assert (node.decision.kept, "out differs by 3 ulp" in node.decision.reason) == (False, True)


def test_it_descends_from_the_best_if_it_holds_most_of_its_lines(told: Told) -> None:
    key = told.landscape.problem.hash
    told.carry_out()
    seed = told.tree().best[key]
    inbox.drop(told.folder, key, proposal())
    inbox.drop(told.folder, key, proposal(source="int another();\n"))
    run = told.run()
    assert inbox.collect(run, told.landscape.problem)
    found = {node.candidate.source: node.candidate.parents for node in submitted(run.tree)}
    assert found == {SOURCE: (seed,), "int another();\n": ()}
    assert run.tree.nodes[key, seed].children == [submitted(run.tree)[0].candidate.hash]


def test_it_descends_from_the_candidate_it_names(told: Told) -> None:
    key = told.landscape.problem.hash
    told.carry_out()
    first = told.tree().titles[key][0]
    inbox.drop(told.folder, key, proposal(), parent=first[:12])
    inbox.drop(told.folder, key, proposal(WRONG), parent="feed")
    run = told.run()
    assert inbox.collect(run, told.landscape.problem)
    assert [node.candidate.parents for node in submitted(run.tree)] == [(first,)]
    (refused,) = [body for body in told.bodies if isinstance(body, Noted)]
    assert "names the parent 'feed', and 0 candidates are called so" in refused.text


def test_what_the_tree_holds_already_is_dropped_and_costs_nothing(told: Told) -> None:
    key = told.landscape.problem.hash
    for source in (SOURCE, f"// in other words\n{SOURCE}"):
        inbox.drop(told.folder, key, proposal(source=source))
    assert len(submitted(told.carry_out())) == 1
    before = len(told.bodies)
    inbox.drop(told.folder, key, proposal())
    assert not inbox.collect(told.run(), told.landscape.problem)
    assert (len(told.bodies), files(told.folder)) == (before, [])


def test_a_run_killed_between_append_and_removal_proposes_it_once(told: Told) -> None:
    inbox.drop(told.folder, told.landscape.problem.hash, proposal())
    for _ in range(3):
        told.deadly = CandidateProposed
        with pytest.raises(KeyboardInterrupt):
            told.carry_out()
        if submitted(told.tree()):
            break
    assert len(files(told.folder)) == 1
    told.deadly = None
    tree = told.carry_out()
    assert sum(isinstance(body, CandidateProposed) for body in told.bodies) == len(tree.nodes)
    assert (len(submitted(tree)), files(told.folder)) == (1, [])


def put(folder: Path, name: str, content: bytes) -> None:
    (folder / "inbox").mkdir(exist_ok=True)
    (folder / "inbox" / name).write_bytes(content)


GARBAGE = {
    "text.json": b"this is no JSON",
    "bytes.json": b"\xff\xfe\x00",
    "empty.json": b"",
    "list.json": b"[]",
    "deep.json": b"[" * 100_000,
    "kernel.cpp": b"int main() {}",
    "surrogate.json": b'{"problem_hash": "x", "proposal": {"source": "\\ud800", "backend": "cpp"}}',
    "huge.json": b" " * (inbox.MAX_BYTES + 1),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_put_aside_with_a_reason_and_the_run_goes_on(name: str, told: Told) -> None:
    put(told.folder, name, GARBAGE[name])
    tree = told.carry_out()
    assert isinstance(tree.ended, RunEnded) and not tree.ended.failed
    assert files(told.folder) == sorted([name, f"{name}.reason.txt"])
    reason = inbox.refusal(told.folder, name)
    assert reason and any(isinstance(body, Noted) and reason in body.text for body in told.bodies)


def test_links_pipes_and_folders_are_not_followed_waited_for_or_read(told: Told) -> None:
    put(told.folder, "plain", b"")
    place = told.folder / "inbox"
    (place / "link.json").symlink_to("/etc/hostname")
    os.mkfifo(place / "pipe.json")
    (place / "folder.json").mkdir()
    told.carry_out()
    assert inbox.refusal(told.folder, "pipe.json") == "it is no file"
    assert inbox.refusal(told.folder, "folder.json") == "it is no file"
    assert (inbox.refusal(told.folder, "link.json") or "").startswith("it cannot be read")
    assert [path.name for path in place.iterdir()] == ["refused"]


def test_a_language_the_run_does_not_use_and_a_strange_problem_are_refused(told: Told) -> None:
    key = told.landscape.problem.hash
    baseline = inbox.drop(told.folder, key, proposal(backend="eager"))
    stranger = inbox.drop(told.folder, "0" * 64, proposal())
    assert submitted(told.carry_out()) == []
    assert inbox.refusal(told.folder, baseline.name) == (
        "the run has no use for language 'eager'; it takes cpp"
    )
    assert inbox.refusal(told.folder, stranger.name) == "it is for a problem that is not in this run"


def test_a_run_that_searches_by_itself_takes_a_submission_in_between(told: Told) -> None:
    told.author = "tuner"
    inbox.drop(told.folder, told.landscape.problem.hash, proposal())
    (node,) = submitted(told.carry_out())
    assert node.decision is not None and node.decision.kept
    assert node.seq == 2  # after the baseline and the seed, before anything the tuner proposes


def test_a_run_that_ended_is_open_again_once_something_new_is_proposed(told: Told) -> None:
    key = told.landscape.problem.hash
    ended = told.carry_out()
    assert ended.ended is not None
    inbox.drop(told.folder, key, proposal())
    run = told.run()
    assert inbox.collect(run, told.landscape.problem) and run.tree.ended is None
    tree = told.carry_out()
    assert tree.nodes[key, tree.best[key]].candidate.author.name == "anna"
    assert tree.ended is not None
    assert [type(body) for body in told.bodies].count(RunEnded) == 2


def test_a_dropped_file_is_there_whole_or_not_at_all(told: Told) -> None:
    """Kill a child while it writes, at ever later moments: no half a file is ever seen under its name."""
    key = told.landscape.problem.hash
    for number in range(6):
        if (child := os.fork()) == 0:
            while True:
                inbox.drop(told.folder, key, proposal(source=SOURCE + f"// {os.urandom(20_000).hex()}\n"))
        time.sleep(0.01 + 0.003 * number)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found = list((told.folder / "inbox").glob("[!.]*"))
    assert found
    for path in found:
        assert inbox.Submission.model_validate_json(path.read_bytes()).problem_hash == key


def verified(shipped: bool, *winners: str) -> ModelVerified:
    ratios = dict.fromkeys(
        ("ratio", "ci_low", "ci_high", "eager_ratio", "eager_ci_low", "eager_ci_high"), 1.1
    )
    return ModelVerified(
        winners={name: f"{name} won" for name in winners},
        **ratios,
        drift=0.0,
        fallbacks=0,
        shipped=shipped,
        reason="",
    )


def tried(name: str, kept: bool, which: str = "won") -> WinnerTried:
    ratios = dict.fromkeys(("ratio", "ci_low", "ci_high"), 1.1)
    return WinnerTried(
        problem_hash=name, candidate_hash=f"{name} {which}", kept=kept, **ratios, drift=0.0, reason=""
    )


@pytest.mark.parametrize(
    ("bodies", "is_verified"),
    [
        ([tried("a", True), tried("b", False), verified(True, "a")], True),
        ([tried("a", False), tried("b", False), verified(False, "a")], True),
        ([tried("a", True), tried("b", False)], False),
        # A new best of one problem, and a run that was killed before the whole was verified with it.
        ([tried("a", True, "was"), tried("b", False), verified(True, "a")], False),
        ([tried("a", False), tried("b", True), verified(True, "b"), tried("a", True)], False),
    ],
)
def test_a_model_is_verified_again_only_if_its_winners_changed(bodies: list[Body], is_verified: bool) -> None:
    tree = Tree()
    for body in bodies:
        tree.apply(body)
    groups: Any = [[SimpleNamespace(problem_hash=name, candidate_hash=f"{name} won")] for name in "ab"]
    assert loop._is_verified(tree, groups) is is_verified

"""What a run does when the world breaks: it says so, loses nothing, and can be taken up again."""

import os
import resource
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from kernelwright.agents import command
from kernelwright.core.brief import Answer, Brief
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.device import DeviceKind
from kernelwright.core.errors import (
    BackendUnavailable,
    DeviceBusy,
    DeviceLost,
    DiskFull,
    KernelwrightError,
    ScratchFull,
)
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    ExpansionAnswered,
    KnowledgeGiven,
    Noted,
    ProblemFound,
    RunEnded,
    RunStarted,
)
from kernelwright.core.expansion import Allowance
from kernelwright.core.messages.progress import Fault
from kernelwright.core.problem import Problem
from kernelwright.core.search import rng_at
from kernelwright.core.tree import fold
from kernelwright.core.verdict import Evaluation, Profile
from kernelwright.engine import loop
from kernelwright.engine.app import resume
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import raise_fault
from kernelwright.store.journal import Journal
from kernelwright.testing.recorded_judge import RecordedClient
from tests.unit.landscapes import valley
from tests.unit.test_loop import TableJudge
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


class Slow:
    """An author with a clock of its own, which its garbage takes a while of."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s, self.now = takes_s, 0.0

    def monotonic(self) -> float:
        """Return the time on that clock."""
        return self.now

    def propose(self, brief: Brief) -> Answer:
        """Say nothing of use, as late as it is waited for."""
        self.now += min(self.takes_s, brief.time_limit_s)
        return Answer(reason="the answer is no JSON")


@pytest.mark.parametrize(
    ("takes_s", "rule", "most"), [(20, "stuck", 300), (500, "budget", 3600), (1e6, "budget", 3600)]
)
def test_an_author_that_is_slow_to_say_nothing_takes_no_run_past_its_budget(
    takes_s: float, rule: str, most: float, make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(takes_s)
    monkeypatch.setattr(loop, "time", slow)
    carry_out(tmp_path / "run", valley(make.problem()), "greedy", author=slow, budget_s=3600)
    tree = Journal.open(tmp_path / "run").tree()
    (quest,) = tree.quests.values()
    assert quest.ended is not None
    assert (quest.ended.rule, tree.ended is not None and not tree.ended.failed) == (rule, True)
    assert 0 < slow.now <= most


def test_an_author_is_waited_for_no_longer_than_the_budget_lasts(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(1e6)
    monkeypatch.setattr(loop, "time", slow)
    carry_out(tmp_path / "run", valley(make.problem()), "greedy", author=slow, budget_s=100)
    assert slow.now == 100, "not the ten minutes an author may take at most"


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


def breaking(error: KernelwrightError) -> type[RecordedClient]:
    """Return a judge that ends at the second kernel of an author, as it would tell the engine."""

    class Breaking(RecordedClient):
        def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
            """Return the recorded verdict, while there is a device and room."""
            authors = [one for one in self.tree.nodes.values() if one.candidate.origin is Origin.AUTHOR]
            if len(authors) >= 2:
                raise_fault(Fault(error=type(error).__name__, message=str(error)))
            return super().evaluate(problem, candidate, profile)

    return Breaking


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DeviceLost("cuda:0", "unspecified launch failure"), "cuda:0 is lost"),
        (DeviceBusy("cpu:0", "process 4711", 600), "in use by process 4711"),
        (ScratchFull("/tmp/judge"), "No room left to build"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_no_candidate_is_to_blame_for_ends_the_run_with_its_reason_and_the_rest_is_done_later(
    error: KernelwrightError, words: str, make, tmp_path: Path
) -> None:
    landscape, folder = valley(make.problem()), tmp_path / "run"
    with pytest.raises(type(error), match=words):
        carry_out(folder, landscape, "mcts", client=breaking(error))
    before = events_of(folder)
    assert isinstance(before[-1].body, RunEnded)
    assert before[-1].body.failed
    assert words in before[-1].body.reason
    carry_out(folder, landscape, "mcts")
    after = events_of(folder)
    assert after[: len(before)] == before
    carry_out(tmp_path / "whole", landscape, "mcts")
    rest = [event.body for event in after if event is not after[len(before) - 1]]
    assert rest == [event.body for event in events_of(tmp_path / "whole")], (
        "it decides as if nothing had been"
    )
    tree = Journal.open(folder).tree()
    assert tree.ended is not None and not tree.ended.failed
    best = tree.nodes[landscape.problem.hash, tree.best[landscape.problem.hash]].candidate
    assert best.choices[-1].values == {"UNROLL": 8, "BLOCK": 128, "two_pass": True}


def test_an_interruption_changes_nothing_of_what_is_drawn_next(make) -> None:
    problem = make.problem()
    first = CandidateProposed(problem_hash=problem.hash, candidate=make.baseline())
    told = [RunEnded(reason="the device is gone", failed=True), Noted(text="a judge is given up")]
    wanted = Allowance(problem_hash=problem.hash, expansions=1)

    def drawn(*bodies: Body) -> float:
        return rng_at(fold([ProblemFound(problem=problem), *bodies]), wanted, 7).random()

    assert drawn(first, *told) == drawn(first)
    assert drawn() != drawn(first)


def test_a_run_that_ends_with_an_error_leaves_the_reports_of_what_it_found(make, tmp_path: Path) -> None:
    """The judge works until the last step, which needs a tool that is not there."""

    class WithoutTool(TableJudge):
        def evaluate(self, problem: Problem, candidate: Candidate, profile: Profile) -> Evaluation:
            if profile is Profile.SHIP:
                raise error
            return super().evaluate(problem, candidate, profile)

    error = BackendUnavailable("cpp", "the compiler's libasan for `ship`", "Install it beside the compiler.")
    problem = make.problem(device=make.device(kind=DeviceKind.CPU))
    config = RunConfig(op="rmsnorm", backend="cpp", author="none", threads=1, budget_s=1.0)
    started = RunStarted(config=config.model_dump(mode="json"), versions={}, device=problem.device)
    folder = tmp_path / "runs" / "own"
    folder.mkdir(parents=True)
    with Journal.create(folder, "own") as journal:
        journal.append([started, ProblemFound(problem=problem), KnowledgeGiven()])
    fast = {seed("rmsnorm", "cpp", Origin.AUTHOR).hash: 50.0}
    judge = WithoutTool(make, defaultdict(lambda: 100.0, fast))
    with pytest.raises(BackendUnavailable) as caught:
        resume(folder, tmp_path, lambda _: None, judge=judge)
    assert caught.value.__notes__ == [f"report: {folder}/report.html"]
    tree = Journal.open(folder).tree()
    assert tree.ended == RunEnded(reason=str(error), failed=True)
    assert [len(held) for held in tree.titles.values()] == [2]
    assert "libasan" in (folder / "report.md").read_text()
    assert (folder / "results.tsv").read_text().count("\tcpp\t") == 1
    assert (folder / "report.html").is_file()

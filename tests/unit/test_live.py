"""What a person sees while a run goes on: a line for every decision, and one picture of where everything stands."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from kernelwright.cli import live
from kernelwright.cli.live import news, picture
from kernelwright.core.config import RunConfig
from kernelwright.core.events import LlmAsked, Noted, ProblemEnded, ProblemFound, RunEnded, SearchEscalated
from kernelwright.core.exchange import Exchange
from kernelwright.core.expansion import Expansion
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Tree
from kernelwright.engine.run import Run, Spent
from kernelwright.engine.seeds import Seeds
from kernelwright.store.journal import Journal
from kernelwright.testing.recorded_judge import RecordedSeeds
from tests.unit.landscapes import valley
from tests.unit.test_resume import carry_out, events_of


def test_every_decision_about_an_author_is_one_line_and_baselines_are_none(make, tmp_path: Path) -> None:
    carry_out(tmp_path / "run", valley(make.problem()), "mcts")
    tree, lines = Tree(), []
    for event in events_of(tmp_path / "run"):
        tree.apply(event.body)
        lines += list(news(tree, [event.body]))
    assert not any("eager" in line for line in lines)
    assert any("cpp by tuner" in line and "kept, proven faster" in line for line in lines)
    assert any("search ended, " in line for line in lines)
    assert all("\n" not in line for line in lines)


def test_escalations_ends_and_notes_are_told(make) -> None:
    problem = make.problem()
    tree = Tree()
    tree.problems[problem.hash] = problem
    bodies = [
        SearchEscalated(problem_hash=problem.hash, level=1, reason="stuck; next: bolder"),
        ProblemEnded(problem_hash=problem.hash, rule="time", reason="2 h"),
        Noted(text="the disk is nearly full"),
    ]
    label = problem.cases[0].label
    assert list(news(tree, bodies)) == [
        f"{label}: stuck; next: bolder",
        f"{label}: search ended, 2 h",
        "the disk is nearly full",
    ]


def test_the_picture_has_a_row_per_problem_and_the_pace(make, tmp_path: Path) -> None:
    landscape = valley(make.problem())
    carry_out(tmp_path / "run", landscape, "mcts")
    tree = Journal.open(tmp_path / "run").tree()
    config, seeds = RunConfig(op="rmsnorm", budget_s=600), RecordedSeeds(("cpp",), 1, landscape)
    run = Run(config, landscape.problem.device, 1, tmp_path, lambda _: None, tree, lambda _: None, seeds)
    run.spent = Spent(200.0)
    console = Console(file=io.StringIO(), width=160)
    console.print(picture(run, "cpp: timing"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert landscape.problem.cases[0].label in shown
    assert "x3.33" in shown, "100 us over 30 us at the lowest point of the valley"
    assert "stuck" in shown
    assert "400 s of the budget left" in shown
    assert shown.rstrip().endswith("cpp: timing")


def shown(run: Run, last: str = "") -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(picture(run, "", last))
    return console.file.getvalue()  # type: ignore[attr-defined]


def run_of(make, *problems: Problem, asked: int = 0, **settings: object) -> Run:
    """Return a run of some problems that has asked a language model so often."""
    tree, config = Tree(), RunConfig.model_validate({"op": "rmsnorm", **settings})
    exchange = Exchange(
        role="writer", provider="openai", model="m", prompt_hash="p", reply_hash="r",
        tokens_in=70, tokens_out=30, cost=0.25, seconds=2.0,
    )  # fmt: skip
    for problem in problems:
        tree.apply(ProblemFound(problem=problem))
    for _ in range(asked):
        tree.apply(LlmAsked(expansion=Expansion(problem_hash=problems[0].hash), exchange=exchange))
    return Run(config, problems[0].device, 1, Path(), lambda _: None, tree, lambda _: None, Seeds((), 1))


@pytest.mark.parametrize(
    ("settings", "asked", "words"),
    [
        ({}, 0, None),
        ({}, 2, "$0.5000 spent, 200 tokens spent"),
        ({"max_cost": 2.0}, 0, "$2.0000 of $2.0000 left"),
        ({"max_cost": 2.0}, 2, "$1.5000 of $2.0000 left, 200 tokens spent"),
        ({"max_tokens": 300}, 2, "$0.5000 spent, 100 of 300 tokens left"),
        ({"max_cost": 0.1, "max_tokens": 100}, 2, "$0.0000 of $0.1000 left, 0 of 100 tokens left"),
    ],
)
def test_money_and_tokens_are_what_is_left_under_a_limit_and_what_was_spent_without(
    make, settings, asked: int, words: str | None
) -> None:
    run = run_of(make, make.problem(), asked=asked, **settings)
    pace = next(line for line in shown(run).splitlines() if "decisions" in line).strip()
    assert pace.endswith(f"of the budget left, {words}" if words else "600 s of the budget left")
    lines = io.StringIO()
    _, watch = live._plainly(Console(file=lines, width=200))
    watch(run, [])
    assert (words or "600 s of the budget left") in lines.getvalue()


def test_the_problem_that_is_worked_on_is_marked(make) -> None:
    large, small = make.problem(share=0.5), make.problem(cases=(make.case(rows=16),), share=0.1)
    run = run_of(make, large, small)

    def marked(last: str = "") -> list[str]:
        return [line.split("  ")[0] for line in shown(run, last).splitlines() if line.startswith(">")]

    assert marked() == [f"> {large.cases[0].label}"]
    run.tree.apply(ProblemEnded(problem_hash=large.hash, rule="time", reason="2 h"))
    assert marked() == [f"> {small.cases[0].label}"]
    run.tree.apply(ProblemEnded(problem_hash=small.hash, rule="time", reason="2 h"))
    assert marked(large.hash) == [f"> {large.cases[0].label}"], "it is being confirmed"
    run.tree.apply(RunEnded(reason="done"))
    assert marked(large.hash) == []


def test_plain_lines_tell_how_it_stands_when_another_problem_has_its_turn_and_after_a_while(make) -> None:
    large, small = make.problem(share=0.5), make.problem(cases=(make.case(rows=16),), share=0.1)
    run = run_of(make, large, small)
    ended = ProblemEnded(problem_hash=large.hash, rule="time", reason="2 h")

    def told(every_s: float) -> list[str]:
        lines = io.StringIO()
        _, watch = live._plainly(Console(file=lines, width=200), every_s)
        for _ in range(2):
            watch(run, [])
        run.tree.apply(ended)
        watch(run, [ended])
        run.tree.quests[large.hash].ended = None
        return [line.split(":")[0] for line in lines.getvalue().splitlines() if line.startswith("now ")]

    names = [f"now {one.cases[0].label}" for one in (large, small)]
    assert told(1e9) == names
    assert told(0.0) == [names[0], *names]

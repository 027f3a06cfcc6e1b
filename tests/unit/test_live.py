"""What a person sees while a run goes on: a line for every decision, and one picture of where everything stands."""

import io
from pathlib import Path

from rich.console import Console

from kernelwright.cli.live import news, picture
from kernelwright.core.config import RunConfig
from kernelwright.core.events import Noted, ProblemEnded, SearchEscalated
from kernelwright.core.tree import Tree
from kernelwright.engine.run import Run, Spent
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

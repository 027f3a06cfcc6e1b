"""Warm starts on recorded landscapes: what one size taught saves verdicts at another, by the engine's own search."""

from pathlib import Path
from statistics import median

import pytest

from kernelwright.core.events import ProblemFound
from kernelwright.core.landscape import Landscape
from kernelwright.core.shelf import Standing
from kernelwright.engine.knowing import knowledge_given
from kernelwright.engine.lessons import findings
from kernelwright.engine.titles import confirm
from kernelwright.store.lessons import Shelf, shelf_file
from kernelwright.testing.recorded_judge import RecordedClient, RecordedJudge
from kernelwright.testing.recorded_run import RecordedRun, Wanderer, settings

RECORDED = Path(__file__).parents[2] / "benchmarks" / "landscapes" / "cpu"
VERDICTS, SEEDS = 24, range(5)
CLOSE = 0.98
"""A speed within 2 % of the cold run's is reached."""


def at_one_size(op: str, place: int) -> Landscape:
    """Return a recorded landscape at one of its sizes."""
    whole = Landscape.model_validate_json((RECORDED / f"{op}.json").read_text())
    problem = whole.problem.model_copy(update={"cases": (whole.problem.cases[place],)})
    return whole.model_copy(update={"problem": problem})


def searched(landscape: Landscape, seed: int, home: Path | None = None) -> RecordedRun:
    """Return a search of a landscape, with the shelf of a home folder if one is named."""
    config = settings(seed=seed, max_evaluations=VERDICTS, lessons=home is not None)
    author = Wanderer(landscape, seed)
    run = RecordedRun(landscape, author, config)
    if home is not None:
        given = knowledge_given(run.run, home)
        run = RecordedRun(landscape, author, config, [ProblemFound(problem=landscape.problem), given])
    return run.search()


def taught(landscape: Landscape, home: Path) -> None:
    """Search a landscape, confirm its best and shelve what was found."""
    run = searched(landscape, seed=1000)
    confirm(run.run, RecordedClient(RecordedJudge(landscape), run.tree), landscape.problem)
    Shelf(shelf_file(home)).add(findings(run.tree, "20260101-000000-aaaaaa"))


def verdicts_to(run: RecordedRun, speed: float) -> int:
    """Return the verdicts after which a search had a kernel of some speed."""
    return next((step.verdicts for step in run.steps if step.kernel_speed >= speed), 10 * VERDICTS)


@pytest.mark.parametrize("op", ["rope", "rmsnorm"])
def test_what_one_size_taught_halves_the_verdicts_at_another(op: str, tmp_path: Path) -> None:
    taught(at_one_size(op, 0), tmp_path)
    other, shares = at_one_size(op, 1), []
    for seed in SEEDS:
        cold, warm = searched(other, seed), searched(other, seed, tmp_path)
        target = CLOSE * cold.steps[-1].kernel_speed
        shares.append(verdicts_to(warm, target) / verdicts_to(cold, target))
    assert median(shares) <= 0.5, shares


def test_a_start_is_the_first_kernel_judged_and_speaks_for_the_lessons_it_was_made_by(tmp_path: Path) -> None:
    first, other = at_one_size("rmsnorm", 0), at_one_size("rmsnorm", 1)
    taught(first, tmp_path)
    shelf = Shelf(shelf_file(tmp_path))
    assert {one.standing for one in shelf.lessons()} == {Standing.NEW}
    run = searched(other, 0, tmp_path)
    kernels = [node.candidate for node in run.tree.nodes.values()]
    assert [one.author.name for one in kernels[1:3]] == ["earlier winner", "landscape"]
    shelf.add(findings(run.tree, "20260102-000000-bbbbbb"))
    made_by = run.tree.given.starts[0].lessons
    standing = {one.lesson.key: one.standing for one in shelf.lessons()}
    assert made_by
    assert {standing[key] for key in made_by} == {Standing.PROMOTED}

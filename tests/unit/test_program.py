"""`program.md`: what whoever drives a run is told, and that its commands are those there are."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from kernelwright.cli.main import build_app
from kernelwright.core.config import RunConfig
from kernelwright.core.events import ProblemFound
from kernelwright.core.problem import Problem
from kernelwright.core.tree import fold
from kernelwright.engine.program import program, write_program
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds

RUN_ID = "20260102-030405-aaaaaa"


def begun(make: SimpleNamespace, home: Path, **settings: object) -> Run:
    problem = make.problem(share=0.25, count=3)
    folder = home / "runs" / RUN_ID
    folder.mkdir(parents=True, exist_ok=True)
    config = RunConfig(model="net.py:build", **settings)
    tree = fold([ProblemFound(problem=problem)])
    return Run(config, problem.device, 1, folder, lambda _: None, tree, lambda _: None, Seeds(("cpp",), 1))


def commands(page: str) -> list[list[str]]:
    """Return the commands of a page, those in blocks and those in the text."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    inline = re.findall(r"`(kernelwright [^`]+)`", page)
    return [shlex.split(line.strip()) for text in (*blocks, *inline) for line in text.strip().splitlines()]


def test_every_command_of_the_program_is_one_there_is(make: SimpleNamespace, tmp_path: Path) -> None:
    found = commands(program(begun(make, tmp_path), tmp_path, {"HOME": "/nowhere"}))
    assert {words[1] for words in found} == {
        "show",
        "brief",
        "judge",
        "submit",
        "resume",
        "report",
        "playbook",
    }
    for _, verb, *words in found:
        command = typer.main.get_command(build_app()).commands[verb]
        # N stands for a number the reader chooses.
        command.make_context(verb, ["1" if word == "N" else word for word in words], resilient_parsing=False)


def test_the_program_tells_this_run_its_problems_and_its_rules(make: SimpleNamespace, tmp_path: Path) -> None:
    run = begun(make, tmp_path, budget_s=8 * 3600.0, near_floor=0.9, patience=4, escalations=1)
    page = program(run, tmp_path, {"HOME": "/nowhere"})
    assert page.startswith(f"# Making net.py:build faster, run {RUN_ID}\n")
    assert "1. `rmsnorm 8x64 fp16`: 25.0 % of the time, 3 times in the model" in page
    assert "Budget of the run: 8 h, begun on 2026-01-02 at 03:04 UTC" in page
    assert f"kernelwright submit candidate.cpp --run {RUN_ID} --problem 1" in page
    assert "  90 % of it on there is nothing to win" in page
    assert "\n- 8 attempts of different kinds in a row were not kept" in page
    assert "$" not in page


@pytest.mark.parametrize("is_usual", [True, False])
def test_a_home_of_its_own_is_exported_first(make: SimpleNamespace, tmp_path: Path, is_usual: bool) -> None:
    home = tmp_path / "has space" / ".kernelwright"
    environment = {"HOME": str(home.parent if is_usual else tmp_path)}
    page = program(begun(make, home), home, environment)
    assert (f"export KERNELWRIGHT_HOME='{home}'" in page) is not is_usual


def test_the_files_beside_it_are_the_problems(make: SimpleNamespace, tmp_path: Path) -> None:
    run = begun(make, tmp_path)
    path = write_program(run, tmp_path)
    assert path == run.folder / "program.md"
    (file,) = (run.folder / "problems").iterdir()
    assert Problem.model_validate_json(file.read_text()).hash == next(iter(run.tree.problems))
    assert f"--problem {file}" in path.read_text()

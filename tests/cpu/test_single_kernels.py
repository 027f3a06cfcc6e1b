"""A run without a model hands its winner over: a module, its certificate, and the line that calls it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelwright.cli.screen import ExitCode
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import DType
from kernelwright.core.events import Body, Compared, Decided, Evaluated, RunEnded, RunStarted
from kernelwright.core.manifest import FOLDER
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Tree, fold
from kernelwright.core.verdict import Profile
from kernelwright.engine import gate
from kernelwright.engine.seeds import seed
from kernelwright.engine.verifying import checked, kernels_folder
from kernelwright.engine.winners import hand_over, write_alone
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.evaluate import Judge
from kernelwright.ops import rmsnorm
from kernelwright.report.chronicle import without_times
from kernelwright.report.usage import line_alone, served
from kernelwright.report.write import read_report
from kernelwright.store.blobs import Blobs
from kernelwright.store.journal import Journal
from kernelwright.store.manifest import read_manifest
from tests.cpu.test_winner_units import GPU, story

CALLED = """
import sys
sys.modules["kernelwright"] = None  # whoever imports it fails
import torch
x, weight = torch.randn({rows}, {cols}), torch.rand({cols})
{line}
print(float((y - torch.nn.functional.rms_norm(x, ({cols},), weight, 1e-5)).abs().max()))
"""
SINGLE = {"op": "rmsnorm", "model": None, "source": None, "replays": None}


def error_of(line: str, rows: int, cols: int) -> float:
    """Run the line in a fresh process that has torch and of Kernelwright nothing; return what it is off by."""
    code = CALLED.format(line=line, rows=rows, cols=cols)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, calibrated: Callable[[Path], Path]) -> Path:
    found = calibrated(tmp_path_factory.mktemp("single") / "home")
    (found / "kernelwright.toml").write_text('hidden_shapes = 1\ncounters = "off"\n')
    return found


def kernelwright(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kernelwright", *words, "--home", str(home)]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)


def optimized(home: Path, *words: str) -> dict[str, Any]:
    kernel = ("--op", "rmsnorm", "--shape", "16x64 fp32", "--author", "none", "--no-lessons")
    done = kernelwright(home, "optimize", *kernel, "--json", *words)
    assert done.returncode == ExitCode.OK, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow  # 80 s: torch.compile, the full profile and three starts that confirm it
def test_the_line_a_run_ends_with_calls_the_winner_it_has_proven(home: Path, tmp_path: Path) -> None:
    told = optimized(home)
    (row,), folder = told["kernels"], Path(told["folder"])
    assert (row["winner"], row["ratio"] > 1, row["ci_low"] > 1) == ("cpp", True, True), row["reason"]
    assert told["ended"] == f"what is proven faster than the baselines is written to {FOLDER}"
    assert told["optimized_kernels"] == str(folder / FOLDER)
    assert error_of(told["line"], 16, 64) < 1e-5
    assert f"Use the result:\n\n```python\n{told['line']}\n```" in (folder / "report.md").read_text()
    (entry,) = checked(folder / FOLDER).entries
    proof = entry.certificate
    assert (entry.module, proof.profile, proof.ratio) == ("rmsnorm", "ship", row["ratio"])
    shutil.rmtree(folder / FOLDER)
    again = json.loads(kernelwright(home, "apply", folder.name, "--json").stdout)
    assert (again["line"], [one["ratio"] for one in again["kernels"]]) == (told["line"], [row["ratio"]])
    copied = json.loads(
        kernelwright(home, "apply", folder.name, "--to", str(tmp_path / "mine"), "--json").stdout
    )
    assert "from mine import rmsnorm; y = rmsnorm.call(x, weight, eps=1e-05)" in copied["line"]
    assert error_of(copied["line"], 16, 64) < 1e-5


def test_a_run_that_proves_nothing_writes_nothing_and_says_so(home: Path) -> None:
    told = optimized(home, "--no-seeds")
    folder = Path(told["folder"])
    words = "no candidate was proven faster than the baselines; nothing is written"
    assert (told["ended"], told["line"], told["optimized_kernels"]) == (words, "", None)
    assert not (folder / FOLDER).exists()
    done = kernelwright(home, "apply", folder.name)
    assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.USAGE, False)
    assert f"this run shipped no kernels: {words}" in done.stderr


@pytest.fixture(scope="module")
def problem() -> Problem:
    case = rmsnorm.case({"rows": 8, "cols": 32}, DType.FP32)
    return Problem(op="rmsnorm", cases=(case,), device=cpu_device())


def events(room: Judge, problem: Problem, run: Path, backend: str = "cpp", **changes: object) -> list[Body]:
    """Return the events of a run without a model whose seed beat eager, and keep what the judge built."""
    baseline, best = seed("rmsnorm", "eager", Origin.BASELINE), seed("rmsnorm", backend, Origin.AUTHOR)
    assert baseline is not None and best is not None
    kept = room.kept.keep(best, problem)
    for content in kept.values():
        Blobs(run / "blobs").put(room.blobs.path(content).read_bytes())
    started = RunStarted(config=SINGLE | changes, versions={}, device=problem.device)
    return [started, *story(problem, baseline, best, kept)]


def best_of(tree: Tree, problem: Problem) -> Candidate:
    return tree.nodes[problem.hash, tree.best[problem.hash]].candidate


def test_a_run_that_was_made_before_there_were_modules_writes_them_when_it_is_asked(
    room: Judge, problem: Problem, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "20260101-000000-abcdef"
    run.mkdir(parents=True)
    with Journal.create(run, run.name) as journal:
        journal.append([*events(room, problem, run), RunEnded(reason="the search has ended")])
    assert kernels_folder(tmp_path, "last") == run / FOLDER
    report = read_report(run, without_times(Journal.open(run).tree()))
    assert report.problems[0].is_installed
    assert report.use.endswith(
        "from optimized_kernels import rmsnorm; y = rmsnorm.call(x, weight, eps=1e-05)"
    )
    assert error_of(report.use, 8, 32) < 1e-5


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_a_gpu_winner_is_written_with_the_plan_that_launches_it(
    room: Judge, problem: Problem, tmp_path: Path, backend: str
) -> None:
    there = problem.model_copy(update={"device": GPU})
    tree = fold(events(room, there, tmp_path, backend))
    assert hand_over(tmp_path, tree) == f"what is proven faster than the baselines is written to {FOLDER}"
    (entry,) = checked(tmp_path / FOLDER).entries
    assert entry.plan is not None and entry.library is None
    assert (entry.backend, entry.device, len(entry.launched)) == (backend, GPU, len(entry.plan.launches))
    assert line_alone(tmp_path / FOLDER, served(tree)).endswith("y = rmsnorm.call(x, weight, eps=1e-05)")


@pytest.mark.parametrize("setting", ["source", "replays"])
def test_what_began_with_a_file_or_repeats_a_run_is_not_handed_over(
    room: Judge, problem: Problem, tmp_path: Path, setting: str
) -> None:
    tree = fold(events(room, problem, tmp_path, **{setting: "it"}))
    assert hand_over(tmp_path, tree) == "the search has ended; there is no model to put a winner into"
    assert not (tmp_path / FOLDER).exists()


def test_a_winner_that_no_module_could_call_is_not_written(
    room: Judge, problem: Problem, tmp_path: Path
) -> None:
    tree = fold(events(room, problem, tmp_path))
    node = tree.nodes[problem.hash, tree.best[problem.hash]]
    node.candidate = node.candidate.model_copy(update={"backend": "python"})
    words = "what is proven faster is no kernel that a module could call by itself; nothing is written"
    assert hand_over(tmp_path, tree) == words
    assert not (tmp_path / FOLDER).exists()


def test_a_winner_that_was_not_confirmed_is_not_written(
    room: Judge, problem: Problem, tmp_path: Path
) -> None:
    *before, judged, compared, _ = events(room, problem, tmp_path)
    assert isinstance(judged, Evaluated) and isinstance(compared, Compared)
    verdict = judged.evaluation.model_copy(update={"profile": Profile.KEEP})
    kept = Decided(decision=gate.decide(verdict, compared.comparison))
    tree = fold([*before, Evaluated(evaluation=verdict), compared, kept])
    assert best_of(tree, problem).backend == "cpp"
    assert not write_alone(tmp_path, tree)
    assert not (tmp_path / FOLDER).exists()


def test_a_winner_that_loses_its_title_later_is_taken_away(
    room: Judge, problem: Problem, tmp_path: Path
) -> None:
    tree = fold(events(room, problem, tmp_path))
    assert hand_over(tmp_path, tree).endswith(f"is written to {FOLDER}")
    assert [one.candidate_hash for one in read_manifest(tmp_path / FOLDER).entries] == [
        best_of(tree, problem).hash
    ]
    node = tree.nodes[problem.hash, tree.best[problem.hash]]
    tree.apply(Decided(decision=gate.rejected(node.evaluations[-1])))
    assert hand_over(tmp_path, tree).endswith("nothing is written")
    assert not (tmp_path / FOLDER).exists()

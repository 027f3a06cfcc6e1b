"""A decorated function from the search to the second process: what was proven faster is kept, found and run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernelwright.core.candidate import Origin
from kernelwright.core.events import Evaluated
from kernelwright.core.tree import Tree
from kernelwright.store.journal import Journal

pytestmark = pytest.mark.slow
# Many products, each smaller than what a library needs to begin one: plain loops take a sixth of the time that eager
# and torch.compile take, so that the machine has no say in whether there is a winner.
FILE = '''"""Spatial transforms."""

import torch

import kernelwright


@kernelwright.tune(budget="2m")
def chained(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return what is left of two transforms, one after the other."""
    return torch.relu(a @ b)
'''
SEARCH = """
import torch, transforms
print(transforms.chained.tune(torch.randn(4096, 6, 6), torch.randn(4096, 6, 6)).model_dump_json())
"""
USE = """
import json, sys, time
import torch
import kernelwright.model.tuning
import transforms

chained, given = transforms.chained, (torch.randn(4096, 6, 6), torch.randn(4096, 6, 6))
other = tuple(one[:1000] for one in given)
winner = chained.winner(*given)
served, original = chained(*given), chained.function(*given)
is_original = bool(torch.equal(chained(*other), chained.function(*other)))

def least_us(function):
    times = []
    for _ in range(60):
        began = time.perf_counter()
        function(*given)
        times.append(time.perf_counter() - began)
    return 1e6 * min(times)

print(json.dumps({
    "lookup_s": winner.lookup_s,
    "key": winner.tuned.key,
    "error": float((served - original).abs().max()),
    "served": chained.calls.served,
    "originals": chained.calls.originals,
    "is_original": is_original,
    "captured": "torch._dynamo" in sys.modules,
    "served_us": least_us(chained),
    "original_us": least_us(chained.function),
}))
"""


def python(code: str, folder: Path) -> dict[str, Any]:
    """Return what a script prints, run in a process and an environment of its own."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "KERNELWRIGHT_HOME": "home"}
    environment |= {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "transforms.py").write_text(FILE)
    (folder / "kernelwright.toml").write_text('author = "none"\nmodel_processes = 3\n')
    return folder


@pytest.fixture(scope="module")
def searched(folder: Path) -> dict[str, Any]:
    return python(SEARCH, folder)


def run_of(folder: Path) -> tuple[Tree, int]:
    """Return the tree of the only run, and how many verdicts its journal holds."""
    (run,) = (folder / "home" / "runs").iterdir()
    events = list(Journal.open(run).bodies())
    return Journal.open(run).tree(), sum(isinstance(one, Evaluated) for one in events)


def test_a_generated_kernel_is_kept_over_eager_and_torch_compile(
    folder: Path, searched: dict[str, Any]
) -> None:
    assert searched["reason"] == "the winners pay end to end"
    steps = [step["kind"] for step in searched["program"]["steps"]]
    assert steps.count("kernel") == 1 and "text" not in steps, "nothing of it is left to the framework"
    tree, judged = run_of(folder)
    (problem,) = tree.problems.values()
    best = tree.nodes[problem.hash, tree.best[problem.hash]]
    assert (problem.op, best.candidate.backend, best.candidate.origin) == ("graph", "cpp", Origin.AUTHOR)
    beaten = {
        tree.nodes[problem.hash, one.incumbent_hash].candidate.backend: one.ci_low for one in best.comparisons
    }
    assert {"eager", "compiled"} <= set(beaten) and min(beaten.values()) > 1.5
    whole = tree.verified
    assert whole is not None and whole.shipped and whole.compiled_ci_low is not None
    assert min(whole.eager_ci_low, whole.compiled_ci_low) > 1
    assert judged >= 3


def test_a_second_process_looks_the_winner_up_and_evaluates_nothing(
    folder: Path, searched: dict[str, Any]
) -> None:
    before = run_of(folder)[1]
    told = python(USE, folder)
    assert told["key"] == searched["key"]
    assert told["lookup_s"] < 0.05 and not told["captured"]
    assert told["error"] < 1e-5
    assert (told["served"], told["originals"]) == (1, {"never tuned": 1})
    assert told["is_original"], "shapes never seen run the original"
    assert told["original_us"] > 1.5 * told["served_us"]
    assert run_of(folder)[1] == before


def test_the_same_call_is_not_searched_twice(folder: Path, searched: dict[str, Any]) -> None:
    before = run_of(folder)[1]
    assert python(SEARCH, folder) == searched
    assert run_of(folder)[1] == before

"""`optimize` before it begins: what it refuses, and that nothing is left behind then."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.screen import ExitCode

MODEL = """
import torch
from torch import nn


class Pointwise(nn.Module):
    def forward(self, x):
        return torch.lgamma(x.exp() + 1) * torch.tanh(x)  # nobody writes loops for lgamma


def build():
    return Pointwise()


def build_sorting():
    class Sorting(nn.Module):
        def forward(self, x):
            return x.sort().values

    return Sorting()


def sample_inputs(seed):
    return (torch.randn(256, 1024, generator=torch.Generator().manual_seed(seed)),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, calibrated: Callable[[Path], Path]) -> Path:
    """Return a folder with the model and one home for all runs."""
    return calibrated(tmp_path_factory.mktemp("optimize") / "home").parent


def optimize(folder: Path, factory: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "net.py").write_text(MODEL)
    command = [sys.executable, "-m", "kernelwright", "optimize", f"net.py:{factory}", "--against", "eager"]
    return subprocess.run(
        [*command, "--home", str(folder / "home"), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_target_that_the_floors_exclude_is_refused_with_the_arithmetic_and_no_run_is_made(
    folder: Path,
) -> None:
    done = optimize(folder, "build", "--target-speedup", "100000")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == ExitCode.MISTAKE, done.stderr
    assert "A speed-up of 100000 is out of reach for 'net.py:build': eager takes" in last
    assert "Ask for --target-speedup" in last
    assert list((folder / "home" / "runs").iterdir()) == []


def test_a_fusion_nobody_can_write_yet_is_reported_and_nothing_is_spliced(folder: Path) -> None:
    done = optimize(folder, "build")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "no plain loops for aten.lgamma" in done.stdout
    assert "ended: no region of the model is offered; nothing is spliced" in done.stdout


def test_a_model_without_any_problem_is_a_one_line_error(folder: Path) -> None:
    done = optimize(folder, "build_sorting")
    assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.MISTAKE, False)
    assert "contains none of the ops known here" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--backend", "nosuch"), "Unknown backend 'nosuch'"),
        (("--target-speedup", "-1"), "setting 'target_speedup'"),
        (("--top", "0"), "setting 'top'"),
        (("--rest", "later"), "setting 'rest'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_the_model_is_loaded(
    folder: Path, words: tuple[str, str], told: str
) -> None:
    done = optimize(folder, "nosuch", *words)
    assert (done.returncode, told in done.stderr) == (ExitCode.MISTAKE, True), done.stderr

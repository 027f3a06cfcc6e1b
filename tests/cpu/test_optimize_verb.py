"""`optimize` before it begins: what it refuses, and that nothing is left behind then."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kernelwright
from kernelwright.cli.main import build_app
from kernelwright.cli.screen import ExitCode
from kernelwright.core.errors import BadInput
from kernelwright.core.events import ExpansionAnswered
from kernelwright.core.marked import replaced
from kernelwright.store.journal import Journal

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
MARKED = "// kernelwright: begin a\n// kernelwright: end a\n"


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


SLOW = """template <typename T>
float sum_of_squares(const T* x, int64_t cols) {
    volatile double sum = 0;  // one addition after the other, through memory
    for (int64_t i = 0; i < cols; ++i) {
        const double value = static_cast<float>(x[i]);
        sum = sum + value * value;
    }
    return static_cast<float>(sum);
}
"""


def marked_file(folder: Path) -> tuple[bytes, bytes]:
    """Write a file with a slow marked region and proposals for it; return it and what it is to become."""
    seed = (Path(kernelwright.__file__).parent / "seeds" / "rmsnorm" / "cpp.cpp").read_text()
    start = seed.index("template <typename T>\nfloat sum_of_squares")
    end = seed.index("template <typename T>\nvoid rows_norm")
    fast = (
        f"{seed[:start]}// kernelwright: begin sum\n{seed[start:end]}// kernelwright: end sum\n{seed[end:]}"
    )
    original, wanted = (
        one.replace("\n", "\r\n").encode() for one in (replaced(fast, "sum", SLOW, "it"), fast)
    )
    (folder / "kernel.cpp").write_bytes(original)
    (folder / "kernelwright.toml").write_text(
        'escalations = 0\nhidden_shapes = 1\npatience = 1\ncounters = "off"\n'
    )
    proposals = folder / "proposals"
    proposals.mkdir()
    (proposals / "a.cpp").write_bytes(wanted)
    (proposals / "b.cpp").write_bytes(wanted.replace(b"schedule(static)", b"schedule(dynamic)"))
    return original, wanted


def search_of_file(folder: Path, home: Path, author: str) -> dict[str, Any]:
    """Return what a search of the file in a folder prints."""
    words = ["--from", "kernel.cpp", "--op", "rmsnorm", "--shape", "32x1024 fp32", "--author", author]
    command = [sys.executable, "-m", "kernelwright", "optimize", *words, "--no-lessons", "--json"]
    done = subprocess.run(
        [*command, "--home", str(home)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.OK, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_file_that_nobody_improves_is_judged_alone_and_stays_the_best(folder: Path, tmp_path: Path) -> None:
    original, _ = marked_file(tmp_path)
    told = search_of_file(tmp_path, folder / "home", "none")
    (row,) = told["kernels"]
    assert (row["winner"], row["baseline"], told["put_back"]) == ("the given file", "cpp", "")
    (node,) = Journal.open(Path(told["folder"])).tree().nodes.values()
    assert node.candidate.source == original.decode().replace("\r\n", "\n")
    assert (tmp_path / "kernel.cpp").read_bytes() == original


@pytest.mark.slow  # 40 s: a race of 13 pairs, the full profile and three starts that confirm it
def test_a_marked_file_is_searched_and_its_winner_goes_back_with_every_byte_outside_as_it_was(
    folder: Path, tmp_path: Path
) -> None:
    original, wanted = marked_file(tmp_path)
    told = search_of_file(tmp_path, folder / "home", "scripted:proposals")
    assert (tmp_path / "kernel.cpp").read_bytes() == original
    (row,) = told["kernels"]
    assert (row["winner"], row["baseline"], told["values"]) == ("cpp", "cpp", {}), row["reason"]
    assert row["ratio"] > 1
    events = [one.body for one in Journal.open(Path(told["folder"])).events()]
    reasons = [one.reason for one in events if isinstance(one, ExpansionAnswered)]
    assert any("it changes what lies behind region 'sum'" in one for one in reasons), reasons
    back = shlex.split(told["put_back"])
    assert back[:3] == ["kernelwright", "new", "--from"]
    command = [sys.executable, "-m", "kernelwright", *back[1:]]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "kernel.cpp").read_bytes() == wanted


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("int a;\n", ("--op", "rmsnorm"), "has no marked region"),
        ("// kernelwright: begin a\n", ("--op", "rmsnorm"), "the region 'a' has no end"),
        (MARKED, (), "what the file computes is not said"),
        (MARKED, ("--op", "rmsnorm", "--no-seeds"), "it would be left out with the seeds"),
        (MARKED, ("--op", "rmsnorm", "--backend", "cuda"), "the file is cpp, not cuda"),
    ],
)
def test_a_file_that_cannot_be_searched_is_refused_in_one_line(
    tmp_path: Path, text: str, words: tuple[str, ...], told: str
) -> None:
    (tmp_path / "k.cpp").write_text(text)
    command = ["optimize", "--from", str(tmp_path / "k.cpp"), *words, "--home", str(tmp_path)]
    done = CliRunner().invoke(build_app(), command, standalone_mode=False)
    assert isinstance(done.exception, BadInput)
    assert told in str(done.exception)

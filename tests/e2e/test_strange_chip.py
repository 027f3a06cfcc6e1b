"""A chip nobody knows: documents and a backend in a folder are all it takes, and without the folder nothing is left."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.screen import ExitCode
from kernelwright.core.verdict import Status
from kernelwright.store.journal import Journal

CHIP = Path(__file__).parent / "strange_chip"
SETTINGS = "threads = 1\nmax_pairs = 6\nhidden_shapes = 2\nmax_expansions = 1\nworkers = 1\n"
NAMES = ("quill", "braid", "weld", "ember", "sweep", "furl", "tally", "plinth.mean", "plinth.rsqrt")
"""Instructions the chip invented; nothing else in this package names them."""


def kernelwright(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KERNELWRIGHT_HOME": str(home)}
    command = [sys.executable, "-m", "kernelwright", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=home, timeout=600, check=False
    )


def optimized(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    chip = ("--op", "rmsnorm", "--shape", "64x256 fp32", "--device", "cpu", "--backend", "tessera")
    author = ("--author", f"scripted:{home / 'chip' / 'kernels'}")
    return kernelwright(home, "optimize", *chip, *author, "--json", *words)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, calibrated: Callable[[Path], Path]) -> Path:
    found = calibrated(tmp_path_factory.mktemp("home"))
    shutil.copytree(CHIP, found / "chip")
    (found / "kernelwright.toml").write_text(SETTINGS)
    return found


@pytest.fixture(scope="module")
def folder(home: Path) -> Path:
    """Return the folder of a run for the chip, with its documents and its backend."""
    given = ("--plugins", str(home / "chip" / "plugins"), "--knowledge", str(home / "chip" / "documents"))
    done = optimized(home, *given)
    assert done.returncode == ExitCode.OK, done.stderr
    return Path(json.loads(done.stdout)["folder"])


def test_a_kernel_in_the_chips_own_language_is_judged_and_accepted(folder: Path) -> None:
    tree = Journal.open(folder).tree()
    (node,) = [one for one in tree.nodes.values() if one.candidate.backend == "tessera"]
    assert node.candidate.author.name == "scripted"
    assert node.evaluations[0].status is Status.ACCEPTED
    assert node.evaluations[0].timing is not None
    assert node.comparisons
    assert len(tree.given.documents) == 12


def test_its_instructions_reach_the_brief_by_retrieval(home: Path, folder: Path) -> None:
    done = kernelwright(home, "brief", folder.name, "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    found = json.loads(done.stdout)
    quoted = "\n".join(found["notes"])
    assert [name for name in NAMES if name not in quoted] == []
    assert not any(name in "".join((found["contract"], *found["cards"])) for name in NAMES)
    assert "quarrel" not in quoted, "a document about another chip's language is left out"
    assert "kindle" not in quoted, "a document about another op is left out"


def test_without_the_folder_neither_the_backend_nor_the_names_are_left(home: Path, folder: Path) -> None:
    unknown = optimized(home)
    assert unknown.returncode == ExitCode.MISTAKE
    assert "'tessera'" in unknown.stderr
    assert "Traceback" not in unknown.stderr
    listed = kernelwright(home, "backends", "--json")
    assert "cpp" in listed.stdout
    assert "tessera" not in listed.stdout
    shutil.move(home / "chip", home / "gone")
    missing = optimized(home, "--plugins", str(home / "chip" / "plugins"))
    assert missing.returncode == ExitCode.MISTAKE
    assert "Plugin folder" in missing.stderr
    searched = kernelwright(home, "playbook", "quill", "braid", "--json")
    assert searched.returncode == ExitCode.NEGATIVE, searched.stdout[:500]

"""The whole run with no key and no GPU: model in, judged kernel out, spliced, verified, journalled."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.cli.screen import ExitCode
from kernelwright.core.candidate import Origin
from kernelwright.core.verdict import Outcome, Profile, Status
from kernelwright.report.results import COLUMNS
from kernelwright.store.chain import Sound
from kernelwright.store.journal import Journal

ROOT = Path(__file__).parents[2]
MODEL = "examples/models/transforms.py:build"
# Thousands of products too small for a library: loops take a fraction of its time, so the machine has no say in whether
# there is a winner.
KERNEL = ("--op", "rmsnorm", "--shape", "64x64 fp32", "--device", "cpu", "--author", "none")


def environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "KERNELWRIGHT_HOME": str(home),
        "SECRET_KEY": "planted",
    }


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kernelwright", "optimize", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
        cwd=ROOT,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, calibrated: Callable[[Path], Path]
) -> tuple[dict[str, object], Path]:
    home = calibrated(tmp_path_factory.mktemp("home"))
    (home / "kernelwright.toml").write_text("")
    limits = ("--max-pairs", "14", "--top", "1", "--processes", "3")
    process = start(home, MODEL, "--json", "--author", "none", *limits)
    out, err = process.communicate(timeout=900)
    assert process.returncode == ExitCode.OK, err
    answer = json.loads(out)
    return answer, Path(answer["folder"])


def test_the_journal_of_a_run_is_sound_and_tells_the_whole_story(
    finished: tuple[dict[str, object], Path],
) -> None:
    _, folder = finished
    journal = Journal.open(folder)
    assert isinstance(journal.verify(), Sound)
    tree = journal.tree()
    assert tree.ranked is not None
    worked_on = [region for region in tree.ranked.regions if not region.skipped]
    (problem,) = tree.problems.values()
    # The region with the largest gain of those with an author.
    assert [region.op for region in worked_on] == [problem.op]
    assert problem.share == pytest.approx(worked_on[0].share)
    beyond = [region.gain for region in tree.ranked.regions if region.skipped.startswith("beyond")]
    assert worked_on[0].gain >= max(beyond, default=0.0)
    assert all(region.skipped for region in tree.ranked.regions if region is not worked_on[0])
    first, second, *_ = tree.nodes.values()
    assert (first.candidate.backend, first.candidate.origin) == ("eager", Origin.BASELINE)
    assert (second.candidate.backend, second.candidate.origin) == ("cpp", Origin.AUTHOR)
    assert all(node.evaluations[0].status is Status.ACCEPTED for node in tree.nodes.values())
    assert tree.ended is not None


def test_what_was_kept_rests_on_a_comparison_that_proves_it(finished: tuple[dict[str, object], Path]) -> None:
    _, folder = finished
    tree = Journal.open(folder).tree()
    challenger = list(tree.nodes.values())[1]
    assert challenger.decision is not None and challenger.decision.kept
    proofs = [one for one in challenger.comparisons if one.outcome is Outcome.FASTER]
    assert all(one.e_faster >= 1000 for one in proofs)
    baselines = {key for (_, key), node in tree.nodes.items() if node.candidate.origin is Origin.BASELINE}
    assert len(baselines) == 2, "torch.compile has to be beaten too"
    assert {one.incumbent_hash for one in proofs} == baselines
    assert proofs[-1].starts == 3
    ships = [one for one in challenger.evaluations if one.profile is Profile.SHIP]
    assert [one.status for one in ships] == [Status.ACCEPTED]


def test_what_was_proven_is_in_the_model_pays_there_and_is_written(
    finished: tuple[dict[str, object], Path],
) -> None:
    answer, folder = finished
    tree = Journal.open(folder).tree()
    (tried,) = tree.tried.values()
    whole = tree.verified
    assert whole is not None and whole.shipped and tried.kept
    assert whole.ci_low <= whole.ratio <= whole.ci_high
    assert (whole.drift <= 1.5, whole.fallbacks) == (True, 0)
    assert whole.compiled_ci_low is not None
    assert min(whole.ci_low, whole.eager_ci_low, whole.compiled_ci_low) > 1
    assert (folder / "optimized_kernels" / "manifest.json").is_file()
    assert str(folder / "optimized_kernels") in str(answer["line"])


def test_results_tsv_has_one_line_per_experiment(finished: tuple[dict[str, object], Path]) -> None:
    _, folder = finished
    head, *rows = [line.split("\t") for line in (folder / "results.tsv").read_text().splitlines()]
    assert tuple(head) == COLUMNS
    tree = Journal.open(folder).tree()
    (problem,) = tree.problems.values()
    assert [row[COLUMNS.index("kernel_type")] for row in rows] == [problem.op] * len(tree.nodes)
    assert all(float(row[COLUMNS.index("latency_us")]) > 0 for row in rows)


def test_no_secret_of_the_environment_reaches_the_run_folder(
    finished: tuple[dict[str, object], Path],
) -> None:
    _, folder = finished
    for path in folder.rglob("*"):
        assert not path.is_file() or b"planted" not in path.read_bytes(), path


def test_ctrl_c_leaves_a_consistent_journal_and_no_process_behind(
    tmp_path: Path, calibrated: Callable[[Path], Path]
) -> None:
    process = start(calibrated(tmp_path), *KERNEL, "--home", str(tmp_path))
    assert process.stderr is not None
    for line in process.stderr:
        if "smoke" in line:
            break
    family = _descendants(process.pid)
    assert len(family) >= 3, "the judge, the reference and the nursery at least"
    os.kill(process.pid, signal.SIGINT)
    err = process.stderr.read()
    assert process.wait(timeout=60) == ExitCode.INTERRUPTED, err
    words = (
        f"interrupted; everything journalled is safe, `kernelwright resume last --home {tmp_path}` goes on"
    )
    assert err.strip().splitlines()[-1] == words
    (folder,) = (tmp_path / "runs").iterdir()
    assert isinstance(Journal.open(folder).verify(), Sound)
    deadline = time.monotonic() + 10
    while (left := family & _running()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def test_ctrl_c_before_the_run_began_names_no_other_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "20200101-000000-abcdef").mkdir(parents=True)
    process = start(tmp_path, MODEL, "--home", str(tmp_path))
    assert process.stderr is not None
    for line in process.stderr:
        if "profiling" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    err = process.stderr.read()
    assert process.wait(timeout=60) == ExitCode.INTERRUPTED, err
    words = "interrupted before the run began; nothing is lost, give the command again"
    assert err.strip().splitlines()[-1] == words


def _parents() -> dict[tuple[int, str], int]:
    """Return the parent of every process, by number and time of its start: numbers are used again."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(path.parent.name), fields[19]] = int(fields[1])
    return found


def _running() -> set[tuple[int, str]]:
    return set(_parents())


def _descendants(pid: int) -> set[tuple[int, str]]:
    """Return everything a process started, and what that started in turn."""
    parents, found, known = _parents(), set(), {pid}
    while fresh := {key for key, parent in parents.items() if parent in known} - found:
        found |= fresh
        known |= {number for number, _ in fresh}
    return found


def test_a_model_that_does_not_exist_is_a_one_line_error(tmp_path: Path) -> None:
    words = ["-m", "kernelwright", "optimize", "nosuch.py:build"]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (ExitCode.MISTAKE, False)
    assert "nosuch.py does not exist" in done.stderr

"""Taking part in a run from the command line: the brief, a submission and its decision, winners judged again."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kernelwright
from kernelwright.cli.screen import ExitCode
from kernelwright.core.brief import Brief
from kernelwright.core.events import Decided
from kernelwright.store.journal import Journal

SEED = Path(kernelwright.__file__).parent / "seeds" / "rmsnorm" / "cpp.cpp"
LABEL = "rmsnorm 64x64 fp32"
# Two pairs prove nothing: every decision is quick, and the baseline keeps its title.
QUICK = ("--author", "none", "--budget", "60s", "--max-pairs", "2", "--threads", "1")


def command(place: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "kernelwright", *words, "--home", str(place / "home")]


def cli(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(place, *words), cwd=place, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, calibrated: Callable[[Path], Path]) -> Path:
    """Return a folder with a finished run in its home, and a candidate that the run has not seen."""
    place = tmp_path_factory.mktemp("taking-part")
    calibrated(place / "home")
    (place / "kernelwright.toml").write_text("hidden_shapes = 0\n")
    done = cli(place, "optimize", "--op", "rmsnorm", "--shape", "64x64 fp32", *QUICK)
    assert done.returncode == ExitCode.OK, done.stderr
    (place / "mine.cpp").write_text(SEED.read_text() + "\nstatic int unused(int x) { return x; }\n")
    return place


def run_folder(place: Path) -> Path:
    return sorted((place / "home" / "runs").iterdir())[0]


def test_the_brief_has_the_contract_the_source_and_the_way_to_submit(place: Path) -> None:
    page = cli(place, "brief", "last").stdout
    assert page.startswith(f"# {LABEL}\n")
    assert SEED.read_text().rstrip() in page
    assert 'extern "C" int kernel_fn' in page
    command = f"kernelwright submit FILE.cpp --run {run_folder(place).name} --problem 1"
    assert f"{command} --note 'what is tried' --wait --home {place / 'home'}\n" in page
    told = Brief.model_validate_json(cli(place, "brief", "last", "--json").stdout)
    assert [case.label for case in told.problem.cases] == [LABEL]
    assert [parent.source for parent in told.parents] == [SEED.read_text()]
    assert len(told.known) == 2  # the baseline and the seed


def test_a_submission_to_a_finished_run_is_judged_by_resume_while_its_author_waits(place: Path) -> None:
    words = ("submit", "mine.cpp", "--author", "anna", "--note", "one more function")
    plain = cli(place, *words)
    run = run_folder(place)
    assert (plain.returncode, plain.stdout.count("\n")) == (ExitCode.OK, 1)
    hint = f"`kernelwright resume {run.name} --home {place / 'home'}`"
    assert f"the run has ended: {hint} judges it" in plain.stdout
    before = list(Journal.open(run).events())
    waiting = subprocess.Popen(
        command(place, *words, "--wait", "--json"),
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while len(list((run / "inbox").glob("*.json"))) < 2 and waiting.poll() is None:
            time.sleep(0.05)
        done = cli(place, "resume", "last")
        assert done.returncode == ExitCode.OK, done.stderr
        said, _ = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
    assert waiting.returncode == ExitCode.NEGATIVE
    (row,) = json.loads(said)["submitted"]
    assert (row["kept"], row["reason"].startswith("not proven faster")) == (False, True)
    after = list(Journal.open(run).events())
    assert after[: len(before)] == before
    tree = Journal.open(run).tree()
    (node,) = [one for one in tree.nodes.values() if one.candidate.author.name == "anna"]
    assert node.candidate.hash == row["candidate"]
    assert (node.candidate.note, node.candidate.author.detail) == ("one more function", "submitted mine.cpp")
    assert tree.ended is not None
    assert not [path for path in (run / "inbox").iterdir() if path.is_file()]


def test_what_is_in_the_run_already_is_answered_at_once_and_resume_has_nothing_to_do(place: Path) -> None:
    shutil.copy(SEED, place / "seed.cpp")
    done = cli(place, "submit", "seed.cpp", "--problem", "rmsnorm")
    assert done.returncode == ExitCode.NEGATIVE
    assert "reverted; in the run already: not proven faster" in done.stdout
    events = Journal.open(run_folder(place)).summary().events
    assert "nothing is left to do" in cli(place, "resume", "last").stderr
    assert Journal.open(run_folder(place)).summary().events == events


def test_garbage_in_the_inbox_opens_no_run(place: Path) -> None:
    run = run_folder(place)
    (run / "inbox").mkdir(exist_ok=True)
    (run / "inbox" / "note.txt").write_text("please make it faster")
    done = cli(place, "resume", "last")
    assert done.returncode == ExitCode.OK
    assert "holds nothing new" in done.stderr
    assert "it is no submission" in (run / "inbox" / "refused" / "note.txt.reason.txt").read_text()
    assert Journal.open(run).tree().ended is not None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("submit", "nosuch.cpp"), "does not exist. Name a source file."),
        (("submit", "mine.cpp", "--problem", "7"), f"no problem is called '7'. Known: 1 is {LABEL}."),
        (("submit", "model.py"), "language 'python': this run does not use it. It takes: cpp."),
        (("brief", "last", "--problem", "softmax"), "no problem is called 'softmax'"),
        (("rejudge", "last"), "this run has no winner."),
    ],
)
def test_what_cannot_be_is_one_line_with_a_remedy(place: Path, words: tuple[str, ...], told: str) -> None:
    (place / "model.py").write_text("def kernel_fn(x, weight):\n    return x\n")
    done = cli(place, *words)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert (len(done.stderr.strip().splitlines()), told in done.stderr) == (1, True), done.stderr


def test_a_winner_that_is_not_proven_again_is_told_beside_what_was_claimed(place: Path) -> None:
    """A run is made to claim a winner that two pairs cannot prove: judged again, it does not hold."""
    claimed = place / "claimed"
    shutil.copytree(run_folder(place), claimed)
    with Journal.open_for_writing(claimed) as journal:
        tree = journal.tree()
        (seed,) = [node for node in tree.nodes.values() if node.candidate.author.name == "seed"]
        assert seed.decision is not None
        journal.append([Decided(decision=seed.decision.model_copy(update={"kept": True}))])
    refused = cli(place, "rejudge", str(claimed), "--json")
    assert refused.returncode == ExitCode.USAGE
    assert "somebody else's run" in refused.stderr and "Pass --trust" in refused.stderr
    done = cli(place, "rejudge", str(claimed), "--trust", "--json")
    assert done.returncode == ExitCode.NEGATIVE, done.stderr
    answer = json.loads(done.stdout)
    (winner,) = answer["winners"]
    assert (winner["case"], winner["held"], winner["now"]) == (LABEL, False, None)
    assert winner["before"]["over"] == "PyTorch eager"
    assert winner["reason"].startswith("not proven faster")
    fresh = Journal.open(Path(answer["folder"])).tree()
    assert {node.candidate.author.name for node in fresh.nodes.values()} == {"baseline", "seed"}
    assert Path(answer["folder"]).parent.samefile(place / "home" / "runs")

"""A clock that favours one arm: the A/A gate must find out before anything is kept, and the run must say so.

The candidates run as always; only the times the judge reads of one arm are not what they were.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import kernelwright
from kernelwright.cli.screen import ExitCode
from kernelwright.core.errors import UnfairClock
from kernelwright.core.messages.judge import Compare, JudgeSettings
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Comparison, Status
from kernelwright.judge import clock
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.heat import Heats
from kernelwright.judge.stages import Failure
from tests.cpu.conftest import cpp

PACKAGE = Path(kernelwright.__file__).parent
SEED = PACKAGE / "seeds" / "rmsnorm" / "cpp.cpp"
PAIRS = 14
JUDGE = """
from kernelwright.judge import __main__, heat

measured = heat.Heats.measure


def measure(self, *arguments):
    first, *others = measured(self, *arguments)
    return [first, *(each / 100 for each in others)]


heat.Heats.measure = measure
__main__.main()
"""
COMMAND = """
import sys
from kernelwright.cli.main import main
from kernelwright.engine import service

start = service.Child.__init__


def start_judge(self, name, module, *rest, **more):
    start(self, name, "unfair_judge" if name == "judge" else module, *rest, **more)


service.Child.__init__ = start_judge
main()
"""


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    home = tmp_path_factory.mktemp("judge")
    settings = JudgeSettings(
        threads=2,
        max_pairs=1,
        alpha=0.001,
        hidden_shapes=1,
        gate_pairs=PAIRS,
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
    )
    made = Judge(settings, lambda _: None)
    yield made
    made.close()


@pytest.fixture(scope="module")
def fair(room: Judge, problem: Problem) -> list[Sequence[float]]:
    """Return the times of both arms in every heat of a comparison that the A/A gate came before."""
    measured, heats = Heats.measure, list[Sequence[float]]()

    def measure(self: Heats, *arguments: object) -> Sequence[float]:
        heats.append(measured(self, *arguments))
        return heats[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Heats, "measure", measure)
        (found,) = room.compare(seed_against_itself(problem)).results
    assert isinstance(found, Comparison)
    return heats


def seed_against_itself(problem: Problem) -> Compare:
    seed = cpp(SEED.read_text())
    return Compare(problem=problem, incumbent=seed, challengers=(seed,))


def test_a_fair_clock_is_found_fair_once_and_then_compares(
    fair: list[Sequence[float]], room: Judge, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (len(fair), room.fair) == (PAIRS + 1, {(problem.device.hash, False)})
    measured, heats = Heats.measure, []

    def measure(self: Heats, *arguments: object) -> Sequence[float]:
        heats.append(measured(self, *arguments))
        return heats[-1]

    monkeypatch.setattr(Heats, "measure", measure)
    (found,) = room.compare(seed_against_itself(problem)).results
    assert (isinstance(found, Comparison), len(heats)) == (True, 1)


def test_every_clock_of_a_device_is_tried_before_it_compares(
    room: Judge, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan against a plan on a GPU goes by launchers' events, host code against the same plan by the slope."""
    tried: list[bool] = []

    def is_fair(bench: object, pairs: int, *, by_events: bool) -> bool:
        tried.append(by_events)
        return True

    monkeypatch.setattr(clock, "is_fair", is_fair)
    monkeypatch.setattr(
        clock, "race", lambda _, lanes, *__, **___: [Failure(Status.CRASHED, "told")] * len(lanes)
    )
    monkeypatch.setattr(room, "fair", set())
    for by_events in (True, False, True, False):
        monkeypatch.setattr(clock, "is_by_events", lambda _, answer=by_events: answer)
        room.compare(seed_against_itself(problem))
    assert tried == [True, False]


@pytest.mark.parametrize("favoured", ["incumbent", "challenger"])
def test_a_clock_that_favours_an_arm_compares_nothing(
    favoured: str, fair: list[Sequence[float]], room: Judge, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heats are those that were found fair, but for the times of one arm."""
    left = iter(fair)

    def measure(self: Heats, *arguments: object) -> Sequence[float]:
        first, second = next(left)
        return [first / 100, second] if favoured == "incumbent" else [first, second / 100]

    monkeypatch.setattr(Heats, "measure", measure)
    monkeypatch.setattr(room, "fair", set())
    with pytest.raises(UnfairClock, match=f"a candidate beat itself in {PAIRS} fresh pairs"):
        room.compare(seed_against_itself(problem))
    assert (1 <= len(list(left)) <= len(fair) - 1, room.fair) == (True, set())


def command(folder: Path, *words: str) -> list[str]:
    """Return the command line with a judge whose clock favours the challenger."""
    (folder / "kernelwright").symlink_to(PACKAGE)
    (folder / "unfair_judge.py").write_text(JUDGE)
    (folder / "command.py").write_text(COMMAND)
    return [sys.executable, str(folder / "command.py"), *words]


def test_an_unfair_clock_is_one_line_and_a_mistake_that_can_be_mended(tmp_path: Path) -> None:
    words = ("judge", str(SEED), "--op", "rmsnorm", "--case", "64x256 fp32", "--against", str(SEED))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command(tmp_path, *words), env=environment, capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert (done.returncode, done.stdout) == (ExitCode.MISTAKE, ""), done.stderr
    assert last.startswith("error: The clock on ")
    assert "a candidate beat itself in 14 fresh pairs" in last

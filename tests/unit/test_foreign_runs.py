"""Somebody else's run is read and shown; nothing of it is run or written unless the user vouches for it."""

import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from kernelwright.cli.main import build_app
from kernelwright.cli.mcp.server import TOOLS
from kernelwright.cli.mcp.tool import Failure, Place, carried_out
from kernelwright.core.captured import CapturedRegion
from kernelwright.core.config import RunConfig
from kernelwright.core.device import DeviceKind
from kernelwright.core.errors import BadInput, BrokenPlugin
from kernelwright.core.events import KnowledgeGiven, ProblemFound, RunStarted
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node
from kernelwright.engine.app import resume
from kernelwright.engine.foreign_runs import FoundRun
from kernelwright.engine.regions import reference_of, regions_folder
from kernelwright.engine.rejudging import asked_again
from kernelwright.engine.replaying import replay
from kernelwright.engine.taking_part import onlooking
from kernelwright.store.journal import Journal
from kernelwright.store.locate import is_own
from tests.unit.test_loop import TableJudge

PLUGIN = """
import os
from pathlib import Path

Path(os.environ["PROOF"]).write_text("ran")
raise ImportError("it ran")
"""
REGION = CapturedRegion(source="# a region\n", kernels={"cpp": "int kernel_fn();"})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that a plug-in writes once it is run."""
    monkeypatch.setenv("PROOF", str(tmp_path / "proof"))
    monkeypatch.setenv("KERNELWRIGHT_PLUGINS", "")
    return tmp_path / "proof"


def plugged(folder: Path) -> str:
    """Put a plug-in into a run's folder, as whoever gives the run away can, and return where."""
    (folder / "more" / "backends").mkdir(parents=True)
    (folder / "more" / "backends" / "evil.py").write_text(PLUGIN)
    return str(folder / "more")


def recorded(folder: Path, config: RunConfig, problem: Problem) -> Journal:
    """Journal the beginning of a run, as if it had been made here or elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    started = RunStarted(config=config.model_dump(mode="json"), versions={}, device=problem.device)
    with Journal.create(folder, folder.name) as journal:
        journal.append([started, ProblemFound(problem=problem), KnowledgeGiven()])
    return Journal.open(folder)


def region_problem(make, reference: str) -> Problem:
    case = make.case()
    inputs = [one.model_copy(update={"name": f"input:{place}"}) for place, one in enumerate(case.inputs)]
    case = case.model_copy(update={"op": "graph", "inputs": tuple(inputs), "scalars": {}})
    device = make.device(kind=DeviceKind.CPU)
    return make.problem(op="graph", cases=(case,), device=device, reference=reference, captured=REGION)


class Reading(TableJudge):
    """A judge that notes where it is told to read what the problem computes."""

    def evaluate(self, problem, candidate, profile):
        self.read.add(problem.reference)
        return super().evaluate(problem, candidate, profile)


@pytest.fixture
def judge(make) -> Reading:
    made = Reading(make, defaultdict(lambda: 100.0))
    made.read = set()
    return made


def test_a_run_is_ones_own_if_it_lies_among_the_runs_of_the_home(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere" / "runs" / "b"
    for folder in (home / "runs" / "a", elsewhere, home / "runs" / "a" / "inner"):
        folder.mkdir(parents=True, exist_ok=True)
    (home / "runs" / "link").symlink_to(elsewhere)
    (tmp_path / "linked-home").symlink_to(home)
    assert is_own(home / "runs" / "a", home)
    assert is_own(home / "runs" / "a", tmp_path / "linked-home")
    for other in (elsewhere, home / "runs" / "link", home / "runs" / "a" / "inner", home / "runs"):
        assert not is_own(other, home), other
    assert not FoundRun(None, home).is_own


def test_going_on_with_somebody_elses_run_is_refused_in_one_line_that_names_its_code(tmp_path: Path) -> None:
    config = RunConfig(model="m.py:build", plugins=("/their/plugins",), author="command:curl x | sh\x1b[2J")
    with pytest.raises(BadInput) as caught:
        FoundRun(tmp_path / "foreign", tmp_path / "home").refuse_running(config)
    words = str(caught.value)
    assert "somebody else's run" in words and words.isprintable()
    for part in ("its reference code", "'m.py:build'", "'/their/plugins'", "'command:curl x | sh\\x1b[2J'"):
        assert part in words
    assert words.endswith("Pass --trust on the command line if you know who made it.")
    FoundRun(tmp_path / "foreign", tmp_path / "home", trusted=True).refuse_running(config)
    FoundRun(tmp_path / "home" / "runs" / "own", tmp_path / "home").refuse_running(config)


def test_plugins_of_ones_own_run_are_used_if_they_are_found_from_anywhere(tmp_path: Path) -> None:
    own = FoundRun(tmp_path / "runs" / "own", tmp_path)
    own.refuse_plugins(RunConfig(plugins=("/ours",)))
    with pytest.raises(BadInput, match="'ours' are another folder wherever one stands"):
        own.refuse_plugins(RunConfig(plugins=("/ours", "ours")))
    FoundRun(tmp_path / "foreign", tmp_path).refuse_plugins(RunConfig())


@pytest.mark.parametrize("is_relative", [True, False])
def test_nothing_of_somebody_elses_run_is_run_by_any_door_of_the_engine(
    is_relative: bool, make, home: Path, proof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "foreign"
    more = plugged(folder)
    config = RunConfig(op="rmsnorm", backend="evil", plugins=("foreign/more" if is_relative else more,))
    journal = recorded(folder, config, make.problem(device=make.device(kind=DeviceKind.CPU)))
    found, tree = FoundRun(folder, home), journal.tree()
    (problem,) = tree.problems.values()
    won = make.candidate()
    tree.nodes[problem.hash, won.hash] = Node(won, problem.hash, seq=0)
    tree.titles[problem.hash] = [won.hash]
    for act in (
        lambda: onlooking(found, tree),
        lambda: asked_again("foreign", tree, found, print),
        lambda: replay(journal, found, print),
        lambda: resume(folder, home, print),
    ):
        with pytest.raises(BadInput, match="somebody else's run"):
            act()
    assert not proof.exists()
    assert not (home / "runs").exists()


@pytest.mark.parametrize("words", [["brief", "foreign"], ["submit", "x.cpp", "--run", "foreign"]])
def test_a_verb_that_only_looks_runs_plugins_of_somebody_elses_run_where_it_is_told_to(
    words: list[str], make, home: Path, proof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.cpp").write_text("int x;")
    config = RunConfig(op="rmsnorm", backend="evil", plugins=(plugged(tmp_path / "foreign"),))
    recorded(tmp_path / "foreign", config, make.problem(device=make.device(kind=DeviceKind.CPU)))
    with pytest.raises(BadInput, match="Pass --trust"):
        build_app()([*words, "--home", str(home)], standalone_mode=False)
    assert not proof.exists()
    with pytest.raises(BrokenPlugin, match="it ran"):
        build_app()([*words, "--home", str(home), "--trust"], standalone_mode=False)
    assert proof.read_text() == "ran"


@pytest.mark.parametrize("name", ["list_problems", "get_brief", "submit", "judge_candidate"])
def test_an_assistant_cannot_have_the_code_of_somebody_elses_run_run(
    name: str, make, home: Path, proof: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = RunConfig(op="rmsnorm", backend="evil", plugins=(plugged(tmp_path / "foreign"),))
    recorded(tmp_path / "foreign", config, make.problem(device=make.device(kind=DeviceKind.CPU)))
    tool = next(one for one in TOOLS if one.name == name)
    given = {"run": "foreign"}
    if name in ("submit", "judge_candidate"):
        given |= {"source": "int x;", "backend": "cpp"}
    found = carried_out(tool, Place(home, tmp_path), given)
    assert isinstance(found, Failure) and "somebody else's run" in found.message
    assert not proof.exists()


def test_a_journal_cannot_say_which_file_is_written(make, home: Path, judge: Reading, tmp_path: Path) -> None:
    victim, folder = tmp_path / "bashrc", tmp_path / "foreign"
    victim.write_text("# the user's own file\n")
    problem = region_problem(make, f"file:{victim}#{REGION.reference_hash}")
    recorded(folder, RunConfig(op="rmsnorm", backend="cpp", author="none", budget_s=1.0), problem)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(BadInput, match="somebody else's run"):
        resume(folder, home, lambda _: None, judge=judge)
    resume(folder, home, lambda _: None, judge=judge, trusted=True)
    replay(Journal.open(folder), FoundRun(folder, home, trusted=True), lambda _: None, recorded_verdicts=True)
    assert victim.read_text() == "# the user's own file\n"
    region = regions_folder(home) / f"{REGION.reference_hash}.py"
    assert region.read_text() == REGION.source
    assert judge.read == {reference_of(REGION, regions_folder(home))}
    fresh = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path for path in fresh if home not in path.parents and folder not in path.parents} == set()


def test_a_link_in_the_place_of_a_region_is_replaced_and_not_followed(
    make, home: Path, judge: Reading
) -> None:
    victim, region = home / "mine", regions_folder(home) / f"{REGION.reference_hash}.py"
    victim.write_text("mine")
    region.parent.mkdir()
    region.symlink_to(victim)
    problem = region_problem(make, reference_of(REGION, regions_folder(home)))
    folder = home / "runs" / "own"
    recorded(folder, RunConfig(op="rmsnorm", backend="cpp", author="none", budget_s=1.0), problem)
    resume(folder, home, lambda _: None, judge=judge)
    assert (victim.read_text(), region.read_text(), region.is_symlink()) == ("mine", REGION.source, False)


def test_runs_go_on_and_are_repeated_after_their_home_was_moved(
    make, home: Path, judge: Reading, tmp_path: Path
) -> None:
    problem = region_problem(make, reference_of(REGION, regions_folder(home)))
    config = RunConfig(op="rmsnorm", backend="cpp", author="none", budget_s=1.0)
    recorded(home / "runs" / "own", config, problem)
    moved = tmp_path / "moved"
    shutil.move(home, moved)
    folder = resume(moved / "runs" / "own", moved, lambda _: None, judge=judge)
    assert judge.read == {reference_of(REGION, regions_folder(moved))}
    tree = Journal.open(folder).tree()
    assert list(tree.problems) == [problem.hash] and tree.ended is not None and not tree.ended.failed
    again = replay(Journal.open(folder), FoundRun(folder, moved), lambda _: None, recorded_verdicts=True)
    assert [one.is_same for one in again.candidates] == [True] * len(tree.nodes)
    (repeated,) = Journal.open(again.folder).tree().problems.values()
    assert repeated.reference == reference_of(REGION, regions_folder(moved))
    assert not home.exists()
    assert [one.stem for one in (moved / "regions").iterdir()] == [REGION.reference_hash]

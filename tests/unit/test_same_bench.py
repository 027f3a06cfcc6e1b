"""Verdicts by other rules or from another device are never mixed with new ones: such a run is not taken up."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import CannotReplay, CannotResume
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Decided,
    Evaluated,
    KnowledgeGiven,
    ProblemFound,
    RunEnded,
    RunStarted,
)
from kernelwright.core.verdict import JUDGE_VERSION
from kernelwright.engine import gate
from kernelwright.engine.app import resume
from kernelwright.engine.foreign_runs import FoundRun
from kernelwright.engine.replaying import replay
from kernelwright.engine.same_bench import refuse_other_device
from kernelwright.hardware.detect import cpu_device
from kernelwright.store.journal import Journal
from tests.unit.test_loop import TableJudge


class Home:
    """A home with one interrupted run."""

    def __init__(self, make, place: Path, device: Device, versions: Sequence[str]) -> None:
        self.place, self.folder, self.make = place, place / "runs" / "old", make
        self.folder.mkdir(parents=True)
        config = RunConfig(op="rmsnorm", backend="cpp", author="none", threads=1, budget_s=1.0, seeds=False)
        problem = make.problem(device=device)
        started = RunStarted(config=config.model_dump(mode="json"), versions={}, device=device)
        told: list[Body] = [started, ProblemFound(problem=problem), KnowledgeGiven()]
        for place_of, version in enumerate(versions):
            candidate = (
                make.baseline() if place_of == 0 else make.candidate(f"int kernel_fn(); // {place_of}")
            )
            verdict = make.evaluation(candidate, problem, judge_version=version)
            told += [CandidateProposed(problem_hash=problem.hash, candidate=candidate)]
            told += [Evaluated(evaluation=verdict)]
            told += [Decided(decision=gate.first_of_problem(verdict))] if place_of == 0 else []
        with Journal.create(self.folder, "old") as journal:
            journal.append(told)

    def resume(self, *, live: bool = False) -> None:
        times = {node.candidate.hash: 100.0 for node in self.tree.nodes.values()}
        judge = None if live else TableJudge(self.make, times)
        resume(self.folder, self.place, lambda _: None, judge=judge)

    @property
    def tree(self):
        return Journal.open(self.folder).tree()


@pytest.fixture
def cpu(make) -> Device:
    return make.device(kind=DeviceKind.CPU)


@pytest.mark.parametrize("versions", [("8", "8"), ("8", JUDGE_VERSION), (JUDGE_VERSION, "8")])
def test_run_judged_by_other_rules_is_not_taken_up_and_its_journal_stays_as_it_is(
    make, tmp_path, cpu, versions
):
    home = Home(make, tmp_path, cpu, versions)
    before = home.tree.events
    with pytest.raises(CannotResume) as caught:
        home.resume()
    named = " and ".join(sorted(set(versions)))
    assert str(caught.value) == (
        f"Run 'old' cannot be taken up: it was judged by version {named} of the rules, this is {JUDGE_VERSION}. "
        "`kernelwright rejudge old` certifies its winners here, a new run searches on from them."
    )
    assert home.tree.events == before


def test_run_judged_by_the_present_rules_goes_on(make, tmp_path, cpu):
    home = Home(make, tmp_path, cpu, (JUDGE_VERSION, JUDGE_VERSION))
    home.resume()
    assert home.tree.ended is not None and not home.tree.ended.failed


def test_run_of_other_rules_that_has_ended_has_nothing_left_to_do(make, tmp_path, cpu):
    home = Home(make, tmp_path, cpu, ("8",))
    with Journal.open_for_writing(home.folder) as journal:
        journal.append([RunEnded(reason="the search has ended")])
    before = home.tree.events
    home.resume()
    assert home.tree.events == before


def test_run_is_not_taken_up_by_a_live_judge_on_another_device(make, tmp_path):
    here = cpu_device()
    home = Home(make, tmp_path, here.model_copy(update={"driver": "0.0"}), (JUDGE_VERSION,))
    before = home.tree.events
    with pytest.raises(CannotResume, match=rf"has changed: driver 0\.0 is now {here.driver}\. .*rejudge old"):
        home.resume(live=True)
    assert home.tree.events == before


@pytest.mark.parametrize("changes", [{"name": "Other"}, {"arch": "other"}, {"driver": "0"}, {"units": 4096}])
def test_device_that_times_depend_on_must_be_the_same(changes):
    with pytest.raises(CannotResume, match=f"{next(iter(changes))} .* is now"):
        refuse_other_device("old", cpu_device().model_copy(update=changes))


def test_same_device_with_other_memory_will_do():
    other = cpu_device().model_copy(update={"memory_bytes": 1})
    refuse_other_device("old", other)
    with pytest.raises(CannotResume):
        refuse_other_device("old", other.model_copy(update={"units": other.units + 1}))


def test_device_that_is_gone_is_named(make):
    with pytest.raises(CannotResume, match=r"its device cuda:77 \(Test GPU\) is not here"):
        refuse_other_device("old", make.device(index=77))


def test_recorded_verdicts_of_several_rules_are_not_given_again(make, tmp_path, cpu):
    home = Home(make, tmp_path, cpu, ("8", JUDGE_VERSION))
    with pytest.raises(CannotReplay, match=f"versions 8 and {JUDGE_VERSION} of the judge's rules"):
        replay(
            Journal.open(home.folder),
            FoundRun(home.folder, tmp_path),
            lambda _: None,
            recorded_verdicts=True,
        )

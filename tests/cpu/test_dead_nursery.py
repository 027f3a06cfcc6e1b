"""A nursery that dies while somebody is timed: a status of the candidate, never an error, and the judge works on.

Only where no other nursery can take its place the candidate is not to blame: then the device is lost, and no verdict.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelwright.core.brief import Trial
from kernelwright.core.candidate import Candidate
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import DeviceLost
from kernelwright.core.messages.judge import Compare, Disqualified, JudgeSettings, Screen
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Comparison, Outcome, Profile, Stage, Status
from kernelwright.engine.service import JudgeClient
from kernelwright.hardware.detect import devices
from kernelwright.judge.children import Service
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.presence import require_device
from tests.cheats.specimen import honest_source
from tests.cpu.conftest import cpp

SOURCE = honest_source("rmsnorm")
PAIRS = 3


class Killer:
    """Listens to a judge and kills its nursery when it says something."""

    def __init__(self) -> None:
        self.word = ""
        self.judge: Judge | None = None
        self.afterwards: Callable[[], None] = lambda: None

    def __call__(self, text: str) -> None:
        if self.word and self.word in text:
            assert self.judge is not None
            self.word = ""
            os.killpg(self.judge.nurseries.started["plain"].process.pid, signal.SIGKILL)
            self.afterwards()


@pytest.fixture(scope="module")
def killer(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    home: Path = tmp_path_factory.mktemp("judge")
    settings = JudgeSettings(
        threads=1,
        max_pairs=PAIRS,
        alpha=0.001,
        hidden_shapes=1,
        gate_pairs=0,
        cache_folder=str(home / "cache"),
        blob_folder=str(home / "blobs"),
    )
    found = Killer()
    found.judge = Judge(settings, found)
    yield found
    found.judge.close()


def variant(number: int) -> Candidate:
    """Return the same kernel under another hash."""
    return cpp(f"{SOURCE}// {number}\n")


def compared(killer: Killer, problem: Problem, *challengers: Candidate) -> list[Comparison | Disqualified]:
    assert killer.judge is not None
    request = Compare(problem=problem, incumbent=variant(0), challengers=challengers)
    return list(killer.judge.compare(request).results)


def test_a_challenger_whose_nursery_dies_while_it_is_compared_has_crashed(
    killer: Killer, problem: Problem
) -> None:
    killer.word = "pair 1:"
    (found,) = compared(killer, problem, variant(1))
    assert isinstance(found, Disqualified)
    assert (found.candidate_hash, found.status) == (variant(1).hash, Status.CRASHED)
    assert "took its parent process down" in found.reason


def test_of_several_each_goes_on_alone_and_keeps_its_evidence(killer: Killer, problem: Problem) -> None:
    killer.word = "pair 2:"
    found = compared(killer, problem, variant(1), variant(2))
    assert killer.word == ""
    for one in found:
        assert isinstance(one, Comparison)
        assert (one.outcome, one.pairs) == (Outcome.NOT_PROVEN, PAIRS)


def test_a_candidate_whose_nursery_dies_while_it_is_certified_has_crashed(
    killer: Killer, problem: Problem
) -> None:
    assert killer.judge is not None
    killer.word = f"cpp: {Stage.TIMING.value}"
    found = killer.judge.evaluate(problem, variant(1), Profile.KEEP)
    assert (found.status, found.timing) == (Status.CRASHED, None)
    assert (found.stages[-1].stage, found.stages[-1].passed) == (Stage.TIMING, False)
    assert isinstance(compared(killer, problem, variant(1))[0], Comparison)


def test_what_cannot_be_begun_ahead_does_not_end_the_judge(judge: JudgeClient, problem: Problem) -> None:
    before = judge.child.process.pid
    judge.prepare(problem, variant(1).model_copy(update={"backend": "missing"}))
    found = judge.evaluate(problem, variant(1), Profile.QUICK)
    assert (found.status, judge.child.process.pid) == (Status.ACCEPTED, before)


@pytest.fixture
def no_more(killer: Killer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Killer]:
    """Give a judge that can start no process any more once its nursery was killed."""
    killer.afterwards = lambda: monkeypatch.setattr(sys, "executable", "/bin/false")
    yield killer
    killer.afterwards = lambda: None


def test_where_no_nursery_can_be_started_any_more_no_verdict_is_given(
    no_more: Killer, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, challenger = no_more.judge, variant(1)
    assert judge is not None
    trial = Trial(
        candidate_hash=challenger.hash, case_hash=problem.cases[0].hash, values=challenger.choices[0].values
    )
    asked: dict[str, Callable[[], object]] = {
        f"cpp: {Stage.SMOKE.value}": lambda: judge.evaluate(problem, challenger, Profile.QUICK),
        f"cpp: {Stage.TIMING.value}": lambda: judge.evaluate(problem, challenger, Profile.KEEP),
        "pair 1:": lambda: compared(no_more, problem, challenger),
    }
    for word, ask in asked.items():
        no_more.word = word
        with pytest.raises(DeviceLost, match=r"cpu:0 .* is lost: no process can be started on it"):
            ask()
        assert no_more.word == ""
        monkeypatch.undo()
    assert isinstance(compared(no_more, problem, challenger)[0], Comparison), "it is back"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    os.killpg(judge.nurseries.started["plain"].process.pid, signal.SIGKILL)
    with pytest.raises(DeviceLost):
        judge.screen(Screen(problem=problem, candidate=challenger, trials=(trial,)))


def test_a_nursery_that_never_serves_is_not_waited_for_long(
    problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    nursery = Service("nursery", "kernelwright.worker.nursery", tmp_path, 1)
    try:
        with pytest.raises(DeviceLost, match=r"says nothing for 0\.2 s"):
            require_device(problem.device, nursery, tmp_path, birth_seconds=0.2)
    finally:
        nursery.close()


def test_who_seems_to_have_crashed_on_a_gpu_that_is_gone_is_not_blamed(
    killer: Killer, problem: Problem
) -> None:
    if any(one.kind is not DeviceKind.CPU for one in devices()):
        pytest.skip("there is a GPU")
    gpu = Device(kind=DeviceKind.CUDA, name="NVIDIA H200", arch="sm_90", units=132, memory_bytes=1 << 37)
    assert killer.judge is not None
    bench = killer.judge.bench(problem.model_copy(update={"device": gpu}), variant(1))
    killer.judge._acquit_if_lost(bench, [Status.ACCEPTED, Status.WRONG])
    with pytest.raises(DeviceLost, match=r"Device cuda:0 \(NVIDIA H200\) is lost: .*libcuda"):
        killer.judge._acquit_if_lost(bench, [Status.ACCEPTED, Status.CRASHED])


def test_a_healthy_device_is_found_healthy_again_and_again(problem: Problem, tmp_path: Path) -> None:
    nursery = Service("nursery", "kernelwright.worker.nursery", tmp_path, 1, "plain")
    try:
        for _ in range(2):
            require_device(problem.device, nursery, tmp_path)
            assert nursery.process.poll() is None, "it serves on"
    finally:
        nursery.close()

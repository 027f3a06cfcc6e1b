"""Launchers of a race, without a GPU: they are made once for all heats, and again only if one may be broken."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwright.core.messages.runner import TimedArm
from kernelwright.core.verdict import Status
from kernelwright.judge import device_heat
from kernelwright.judge.device_heat import HEATS_PER_LAUNCHER, DeviceHeats
from kernelwright.judge.heat import TimingFailed
from kernelwright.judge.stages import Failure
from kernelwright.judge.track import Track

CASE: Any = SimpleNamespace(hash="case")


class Ledger:
    """Counts what is opened, closed and made."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.made: list[str] = []
        self.raced: list[list[str]] = []
        self.fails = False

    def box(self, *_: object) -> Any:
        self.opened += 1
        slab = SimpleNamespace(nbytes=1)
        return SimpleNamespace(
            wait=lambda: None, close=self.close, arena=SimpleNamespace(inputs=slab, outputs=slab)
        )

    def close(self) -> None:
        self.closed += 1

    def arm(self, bench: Any, case: Any, place: int) -> TimedArm:
        self.made.append(bench.candidate.hash)
        return TimedArm(name=str(place), kind="plan", folder=bench.candidate.hash)

    def timed(self, heats: DeviceHeats, track: Track, benches: object, rounds: int) -> list[list[float]]:
        self.raced.append([arm.folder for arm in track.arms])
        if self.fails:
            self.fails = False
            raise TimingFailed(1, Failure(Status.CRASHED, "it fell"))
        return [[1.0] for _ in track.arms]


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    found = Ledger()
    monkeypatch.setattr(device_heat, "opened", found.box)
    monkeypatch.setattr(device_heat, "_arm", found.arm)
    monkeypatch.setattr(device_heat, "Mixtures", lambda *_: SimpleNamespace())
    monkeypatch.setattr(DeviceHeats, "_timed", lambda *given: found.timed(*given))
    return found


def benches(names: Sequence[str]) -> list[Any]:
    device = SimpleNamespace(memory_bytes=1 << 30)
    return [
        SimpleNamespace(
            is_planned=False,
            candidate=SimpleNamespace(hash=name),
            nursery=None,
            where="cpu",
            rng=random.Random(0),
            problem=SimpleNamespace(device=device),
        )
        for name in names
    ]


def test_who_leaves_a_race_leaves_his_launcher_to_the_others(ledger: Ledger) -> None:
    with DeviceHeats() as heats:
        heats.measure(CASE, benches("abcd"), 4)
        heats.measure(CASE, benches("acd"), 4)
        heats.measure(CASE, benches("ad"), 4)
        assert (ledger.opened, ledger.closed) == (4, 0)
    assert ledger.raced == [list("abcd"), list("acd"), list("ad")]
    assert ledger.made == list("abcd"), "a plan is bound once in a race"
    assert ledger.closed == 4


def test_who_fails_takes_all_launchers_with_it(ledger: Ledger) -> None:
    with DeviceHeats() as heats:
        ledger.fails = True
        with pytest.raises(TimingFailed):
            heats.measure(CASE, benches("abc"), 4)
        assert (ledger.opened, ledger.closed) == (3, 3)
        heats.measure(CASE, benches("ac"), 4)
        assert (ledger.opened, ledger.closed) == (5, 3)


def test_launchers_are_replaced_every_few_heats(ledger: Ledger) -> None:
    with DeviceHeats() as heats:
        for _ in range(HEATS_PER_LAUNCHER + 1):
            heats.measure(CASE, benches("ab"), 4)
    assert (ledger.opened, ledger.closed) == (4, 4)

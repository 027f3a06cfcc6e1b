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
from kernelwright.judge.paddock import WAITING_SHARE
from kernelwright.judge.stages import Failure
from kernelwright.judge.track import Track

CASE: Any = SimpleNamespace(hash="case")
OTHER: Any = SimpleNamespace(hash="another case")
CALLS, MEMORY = 4, 1 << 30


class Ledger:
    """Counts what is opened, closed and made."""

    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.made: list[str] = []
        self.raced: list[list[str]] = []
        self.fails = False
        self.nbytes = 1

    def box(self, case: Any, size: int, *_: object) -> Any:
        self.opened += 1
        slab = SimpleNamespace(nbytes=self.nbytes)
        arena = SimpleNamespace(inputs=slab, outputs=slab, calls=[None] * size, index=0)
        return SimpleNamespace(wait=lambda: None, close=self.close, arena=arena)

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


def benches(names: Sequence[str], nursery: Any = None) -> list[Any]:
    device = SimpleNamespace(memory_bytes=MEMORY, index=0)
    return [
        SimpleNamespace(
            is_planned=False,
            candidate=SimpleNamespace(hash=name),
            nursery=nursery or SimpleNamespace(paddock=None),
            where="cpu",
            rng=random.Random(0),
            problem=SimpleNamespace(device=device),
        )
        for name in names
    ]


def test_who_leaves_a_race_leaves_his_launcher_to_the_others(ledger: Ledger) -> None:
    with DeviceHeats() as heats:
        heats.measure(CASE, benches("abcd"), CALLS)
        heats.measure(CASE, benches("acd"), CALLS)
        heats.measure(CASE, benches("ad"), CALLS)
    assert (ledger.opened, ledger.closed) == (4, 0)
    assert ledger.raced == [list("abcd"), list("acd"), list("ad")]
    assert ledger.made == list("abcd"), "a plan is bound once in a race"


def test_who_fails_takes_all_launchers_with_it(ledger: Ledger) -> None:
    with DeviceHeats() as heats:
        ledger.fails = True
        with pytest.raises(TimingFailed):
            heats.measure(CASE, benches("abc"), CALLS)
        assert (ledger.opened, ledger.closed) == (3, 3)
        heats.measure(CASE, benches("ac"), CALLS)
        assert (ledger.opened, ledger.closed) == (5, 3)


def test_launchers_are_replaced_every_few_heats_of_whatever_race(ledger: Ledger) -> None:
    nursery = SimpleNamespace(paddock=None)
    for heats_of_a_race in (HEATS_PER_LAUNCHER - 1, 2):
        with DeviceHeats() as heats:
            for _ in range(heats_of_a_race):
                heats.measure(CASE, benches("ab", nursery), CALLS)
    assert (ledger.opened, ledger.closed) == (4, 2)


def raced(names: str, nursery: Any, case: Any = CASE, size: int = CALLS, boxes: int | None = None) -> None:
    with DeviceHeats(boxes=boxes) as heats:
        heats.measure(case, benches(names, nursery), size)


def test_the_next_race_of_the_same_case_finds_the_launchers_of_the_last(ledger: Ledger) -> None:
    nursery = SimpleNamespace(paddock=None)
    raced("ab", nursery)
    raced("acd", nursery)
    assert (ledger.opened, ledger.closed) == (3, 0), "two wait, one more is opened"
    assert ledger.raced == [list("ab"), list("acd")], "and every race has its own arms"
    raced("ab", SimpleNamespace(paddock=None))
    assert ledger.opened == 5, "launchers of another parent are no launchers of this one"
    nursery.paddock.close()
    assert ledger.closed == 3


@pytest.mark.parametrize(("case", "size"), [(OTHER, CALLS), (CASE, CALLS + 1)])
def test_a_race_that_finds_nothing_closes_what_waits(ledger: Ledger, case: Any, size: int) -> None:
    nursery = SimpleNamespace(paddock=None)
    raced("ab", nursery)
    raced("ab", nursery, case, size)
    assert (ledger.opened, ledger.closed) == (4, 2)


def test_what_is_timed_alone_or_ends_by_a_failure_leaves_no_launcher(ledger: Ledger) -> None:
    nursery = SimpleNamespace(paddock=None)
    raced("a", nursery, boxes=2)
    assert (ledger.opened, ledger.closed) == (2, 2)
    ledger.fails = True
    with pytest.raises(TimingFailed):
        raced("ab", nursery)
    assert (ledger.opened, ledger.closed) == (4, 4)
    assert nursery.paddock is None or not nursery.paddock.tracks


def test_what_waits_takes_a_small_part_of_the_device(ledger: Ledger) -> None:
    nursery = SimpleNamespace(paddock=None)
    ledger.nbytes = MEMORY // WAITING_SHARE // 6  # three slabs for each of two arms: all of it
    raced("ab", nursery)
    assert ledger.closed == 0
    ledger.nbytes += MEMORY // 100
    raced("ab", nursery, OTHER)
    assert ledger.closed == 4, "the first for another case, the second for want of room"


def test_an_arm_that_cannot_be_loaded_leaves_no_empty_place_to_the_next_race(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    nursery = SimpleNamespace(paddock=None)

    def refused(*_: object) -> TimedArm:
        raise TimingFailed(0, Failure(Status.BUILD_FAILED, "it does not compile"))

    with monkeypatch.context() as patch, DeviceHeats() as heats:
        patch.setattr(device_heat, "_arm", refused)
        with pytest.raises(TimingFailed):
            heats.measure(CASE, benches("ab", nursery), CALLS)
    raced("ab", nursery)
    assert (ledger.opened, ledger.closed) == (2, 0)

"""The boxes of a race without a GPU: who is asked when, who is blamed, and who comes where."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelwright.core.messages.runner import Time
from kernelwright.core.verdict import Status
from kernelwright.judge.children import Lost
from kernelwright.judge.device_heat import clocks
from kernelwright.judge.heat import Slope, TimingFailed, undisturbed
from kernelwright.judge.track import Track


class Launcher:
    """Notes what is asked of it, and fails where it is told to."""

    def __init__(self, name: int, said: list[str], *, fails: bool = False) -> None:
        self.name, self.said, self.fails = name, said, fails

    def time(self, order: object) -> None:
        self.said.append(f"sent {self.name}")

    def timed(self, order: object, timeout_s: float) -> list[float]:
        self.said.append(f"done {self.name}")
        if self.fails:
            raise Lost(Status.CRASHED, f"launcher {self.name} fell")
        return []


def track(said: list[str], boxes: int, arms: int, failing: Sequence[int] = ()) -> Track:
    made: Any = tuple(
        SimpleNamespace(
            arena=SimpleNamespace(poison_outputs=lambda: said.append("blank")),
            runner=Launcher(number, said, fails=number in failing),
        )
        for number in range(boxes)
    )
    mixtures: Any = SimpleNamespace(draw_hard=lambda: None)
    arm: Any = None
    case: Any = SimpleNamespace()
    found = Track(case, made, (arm,) * arms, mixtures, random.Random(0))
    found.places = [(place % boxes, place // boxes) for place in range(arms)]
    return found


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def test_all_arms_capture_before_the_first_is_waited_for_and_find_their_outputs_blank() -> None:
    said: list[str] = []
    track(said, 3, 3).capture((2, 0, 1), (4, 5))
    assert said[:3] == ["blank"] * 3
    assert sorted(said[3:6]) == ["sent 0", "sent 1", "sent 2"]
    assert sorted(said[6:]) == ["done 0", "done 1", "done 2"]


def test_who_fails_while_all_capture_is_blamed_and_everybody_is_heard_before() -> None:
    said: list[str] = []
    with pytest.raises(TimingFailed) as caught:
        track(said, 3, 3, failing=[1]).capture((0, 1, 2), (4, 5))
    assert (caught.value.arm, caught.value.failure.status) == (1, Status.CRASHED)
    assert {"done 0", "done 1", "done 2"} <= set(said)


def test_an_arm_alone_takes_its_boxes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Track, "refill", lambda _: None)
    one, seen = track([], 2, 1), []
    for heat in range(4):
        one.heats = heat
        one.load()
        seen += one.places
    assert seen == [(0, 0), (1, 0), (0, 0), (1, 0)]


def test_arms_that_share_a_box_take_turns_and_others_do_not() -> None:
    assert track([], 1, 3).turns((2, 0, 1)) == [(2,), (0,), (1,)]
    assert track([], 3, 3).turns((2, 0, 1)) == [(2, 0, 1)]
    assert track([], 2, 1).turns((0,)) == [(0,)]


def test_no_capture_is_on_the_judges_own_clock() -> None:
    orders: list[Time] = []

    def asked(place: int, order: Time) -> list[float]:
        orders.append(order)
        return [0.005] * order.replays

    boxes = (SimpleNamespace(filled=[{}, {}]),)
    events, _ = clocks(SimpleNamespace(boxes=boxes, asked=asked), 7)  # type: ignore[arg-type]
    assert events == 0.005
    assert [(order.calls, order.repeats, order.replays) for order in orders[:1]] == [((0, 1), 7, 0)]
    assert [(order.calls, order.replays) for order in orders[1:]] == [((), 4), ((), 16)]


def test_two_disturbed_batches_of_four_do_not_count() -> None:
    assert undisturbed([30.0, 10.0, 90.0, 12.0]) == 11.0
    assert undisturbed([30.0, 10.0]) == 10.0
    assert undisturbed([30.0]) == 30.0


def test_stalling_in_a_short_batch_makes_no_call_shorter() -> None:
    honest, stalled = Slope(0.010, 10, 0.020, 20), Slope(0.019, 10, 0.020, 20)
    assert stalled.call_us(0.0) > honest.call_us(0.0)
    assert undisturbed([stalled.call_us(0.0)] * 4) > undisturbed([honest.call_us(0.0)] * 4)

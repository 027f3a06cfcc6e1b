"""What a pass of timed calls leaves behind, and that nothing in it tells whether it is looked at."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernelwright.core.case import Distribution
from kernelwright.core.verdict import Profile, Status
from kernelwright.judge import oracle, passes
from kernelwright.judge.arena import Arena
from kernelwright.judge.error_budget import PASSED, Verdict
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.fresh import Hard
from kernelwright.judge.heat import ROUNDS_PER_HEAT, Heats
from kernelwright.judge.oracle import Answer
from kernelwright.judge.passes import Answered, Pass, wrongly_answered, wrongly_written
from kernelwright.judge.stages import checks
from kernelwright.ops import rmsnorm
from tests.cpu.conftest import cpp
from tests.cpu.test_heavy import CASE, PROBLEM
from tests.cpu.test_stages import HONEST

NOW = Pass(made=(2, 0), spared=(3, 1))


def status(written: tuple[int, ...]) -> Status | None:
    """Return what is said of a pass in which these calls were answered."""
    with Arena([CASE], [0] * 4, random.Random(3)) as arena:
        arena.poison_outputs()
        for number in written:
            arena.view(number, CASE.outputs[0]).fill_(1.0)
        failure = wrongly_written(arena, NOW, CASE)
        return failure.status if failure else None


def test_calls_that_are_made_are_answered_and_no_others() -> None:
    assert status((0, 2)) is None
    assert status((0,)) is Status.NOT_WRITTEN
    assert status((0, 2, 3)) is Status.STATEFUL


def test_every_pass_has_a_call_with_hard_inputs_that_is_made(room: Judge) -> None:
    assert room.evaluate(PROBLEM, cpp(HONEST), Profile.QUICK).status is Status.ACCEPTED
    bench, found = room.bench(PROBLEM, cpp(HONEST)), list[tuple[Hard, int]]()
    with Heats() as heats:
        heats.measure(CASE, [bench], 16)
        mixtures = heats.kept[CASE.hash].mixtures
        harden = mixtures.harden

        def told(calls, made) -> Hard:
            found.append((harden(calls, made), len(made)))
            assert found[-1][0].call in made
            return found[-1][0]

        mixtures.harden = told  # type: ignore[method-assign]
        heats.measure(CASE, [bench], 16)
    assert [made for _, made in found] == [12] * 2 * ROUNDS_PER_HEAT, "there and back, in every round"


def test_only_what_is_asked_of_the_clock_alone_leaves_answers_unseen(
    room: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room.evaluate(PROBLEM, cpp(HONEST), Profile.QUICK).status is Status.ACCEPTED
    bench, asked = room.bench(PROBLEM, cpp(HONEST)), list[int]()
    answers_to = passes.answers_to
    monkeypatch.setattr(passes, "answers_to", lambda *call: asked.append(call[-1]) or answers_to(*call))
    with Heats(is_looked_at=False) as heats:
        heats.measure(CASE, [bench, bench], 16)
    assert asked == []
    with Heats() as heats:
        heats.measure(CASE, [bench, bench], 16)
    assert asked


HARD_ONLY = Pass(made=(0,), spared=(), hard=Hard(0, Distribution.WIDE))


def passed(monkeypatch: pytest.MonkeyPatch, compared: list[float]) -> None:
    """Note the last element of whatever is compared with float64, and let it pass."""

    def check_output(values: torch.Tensor, *_: object) -> Verdict:
        compared.append(float(values.view(-1)[-1]))
        return PASSED

    answer = Answer(torch.ones(1), torch.ones(1), torch.ones(1))
    monkeypatch.setattr(passes, "answers_to", lambda *_: [answer])
    monkeypatch.setattr(oracle, "check_output", check_output)
    monkeypatch.setattr(checks, "depth_of", lambda *_: None)


def answered(*arenas: Arena) -> list[Answered]:
    """Return arms that answered the one call alike."""
    bench: Any = SimpleNamespace(op=rmsnorm, seed=1)
    for arena in arenas:
        arena.poison_outputs()
        arena.view(0, CASE.outputs[0]).fill_(1.0)
    return [Answered(place, arena, bench) for place, arena in enumerate(arenas)]


@pytest.mark.parametrize(("last", "seen"), [(1.0, [1.0]), (2.0, [1.0, 2.0])])
def test_an_answer_is_compared_with_float64_unless_it_is_one_that_passed_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, last: float, seen: list[float]
) -> None:
    compared: list[float] = []
    passed(monkeypatch, compared)
    with Arena([CASE], [0], random.Random(1)) as first, Arena([CASE], [0], random.Random(2)) as second:
        arms = answered(first, second)
        second.view(0, CASE.outputs[0]).view(-1)[-1] = last
        assert wrongly_answered(arms, HARD_ONLY, CASE, random.Random(3), few=False) is None
    assert compared == seen


def test_an_answer_like_one_that_passed_may_still_write_nothing_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed(monkeypatch, [])
    with Arena([CASE], [0], random.Random(1)) as first, Arena([CASE], [0], random.Random(2)) as second:
        arms = answered(first, second)
        monkeypatch.setattr(second, "canary_broken", lambda *_: True)
        found = wrongly_answered(arms, HARD_ONLY, CASE, random.Random(3), few=False)
    assert found is not None
    assert (found[0], found[1].status) == (1, Status.OUT_OF_BOUNDS)

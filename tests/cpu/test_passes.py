"""What a pass of timed calls leaves behind, and that nothing in it tells whether it is looked at."""

import random

import pytest

from kernelwright.core.verdict import Profile, Status
from kernelwright.judge import passes
from kernelwright.judge.arena import Arena
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.fresh import Hard
from kernelwright.judge.heat import ROUNDS_PER_HEAT, Heats
from kernelwright.judge.passes import Pass, wrongly_written
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

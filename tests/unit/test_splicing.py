"""Winners enter one by one: who stays, who goes, and what is said of the whole. Pure functions of raw times."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.core.account import Against
from kernelwright.core.messages.model import ModelTimed, ModeTimes, OutputCheck, VerifyModel, Winner
from kernelwright.engine import splicing
from kernelwright.engine.diagnose import all_failing, smallest_failing
from kernelwright.engine.splicing import added_one_by_one, verification

PROCESSES, ROUNDS, WOBBLE = 5, 12, 0.004


def series(us: float, phase: int) -> tuple[float, ...]:
    rng = random.Random(1000 * us + phase)
    return tuple(us * math.exp(rng.gauss(0, WOBBLE)) for _ in range(ROUNDS))


def check(arm: int, problem: str = "", ratio: float = 1.0) -> OutputCheck:
    return OutputCheck(
        arm=arm, inputs="input", elements=8, output="logits", error=1e-6, own_error=1e-6, ratio=ratio,
        allowed=1.5, problem=problem,
    )  # fmt: skip


def timed(
    spliced: Sequence[float],
    *,
    eager: float = 110.0,
    compiled: float | None = 95.0,
    graph: Sequence[float] | None = None,
    problems: Sequence[str] = (),
    calls: Sequence[int] | None = None,
) -> list[ModelTimed]:
    """Return what five processes say of a captured graph of 100 us and of arms that take so long."""
    found = []
    for phase in range(PROCESSES):
        modes = [
            ModeTimes(
                mode=mode,
                eager_us=series(eager, phase),
                captured_us=series(100.0, 10 + phase),
                compiled_us=series(compiled, 20 + phase) if compiled else (),
                spliced_us=tuple(series(us, 30 + phase) for us in arms),
            )
            for mode, arms in (("plain", spliced), ("graph", graph))
            if arms is not None
        ]
        words = [*problems, *[""] * len(spliced)]
        found.append(
            ModelTimed(
                modes=tuple(modes),
                checks=tuple(check(arm, words[arm]) for arm in range(len(spliced))),
                spliced_calls=tuple(calls or range(1, len(spliced) + 1)),
                fallbacks=(0,) * len(spliced),
            )
        )
    return found


@pytest.fixture
def winners(make) -> list[tuple[Winner, ...]]:
    return [
        (
            Winner(
                problem_hash=f"p{place}", candidate_hash=f"c{place}", backend="cpp", case=make.case(rows=8 + place),
                artefact="kernel.so", artefact_hash="0" * 64,
            ),
        )
        for place in range(3)
    ]  # fmt: skip


def added(groups, time, earlier=()):
    """Return what came of each winner, of the whole, and who stays."""
    events = []
    known = {event.problem_hash: event for event in earlier}
    verified, stay = added_one_by_one(groups, time, verification, events.extend, known)
    assert events.pop() == verified
    return events, verified, stay


class Bench:
    """Times sets of winners by what each of them gains."""

    def __init__(self, gains: Sequence[float], broken: Sequence[int] = ()) -> None:
        self.gains, self.broken = gains, broken
        self.asked: list[list[tuple[int, ...]]] = []

    def __call__(self, arms: Sequence[tuple[int, ...]]) -> list[ModelTimed]:
        self.asked.append([tuple(arm) for arm in arms])
        spliced = [100 / math.prod(self.gains[place] for place in arm) for arm in arms]
        problems = ["is off" if set(arm) & set(self.broken) else "" for arm in arms]
        return timed(spliced, problems=problems, calls=[len(arm) for arm in arms])


def test_winners_that_all_pay_are_timed_side_by_side_in_one_batch(winners) -> None:
    bench = Bench([1.2, 1.1, 1.05])
    events, verified, stay = added(winners, bench)
    assert bench.asked == [[(0,), (0, 1), (0, 1, 2)]]
    assert [(event.kept, round(event.ratio, 2)) for event in events] == [
        (True, 1.2),
        (True, 1.1),
        (True, 1.05),
    ]
    assert [event.beside for event in events] == [(), ("c0",), ("c0", "c1")]
    assert (verified.shipped, verified.winners) == (True, {"p0": "c0", "p1": "c1", "p2": "c2"})
    assert verified.ratio == pytest.approx(1.2 * 1.1 * 1.05, rel=0.01)
    assert [winner.problem_hash for winner in stay] == ["p0", "p1", "p2"]


def test_one_that_does_not_pay_goes_and_the_next_is_added_to_those_that_stayed(winners) -> None:
    bench = Bench([1.2, 0.9, 1.1])
    events, verified, stay = added(winners, bench)
    assert bench.asked == [[(0,), (0, 1), (0, 1, 2)], [(0,), (0, 2)]]
    assert [event.kept for event in events] == [True, False, True]
    assert "does not pay: x0.9" in events[1].reason
    assert verified.winners == {"p0": "c0", "p2": "c2"}
    assert verified.ratio == pytest.approx(1.32, rel=0.01)
    assert len(stay) == 2


def test_what_was_chosen_by_a_measurement_is_verified_by_another(winners) -> None:
    bench = Bench([1.2, 1.1, 0.9])
    _, verified, _ = added(winners, bench)
    assert bench.asked == [[(0,), (0, 1), (0, 1, 2)], [(0, 1)]]
    assert verified.winners == {"p0": "c0", "p1": "c1"}


def test_a_winner_that_breaks_the_outputs_goes_however_fast_it_is(winners) -> None:
    bench = Bench([1.1, 2.0, 1.1], broken=[1])
    events, verified, stay = added(winners, bench)
    assert [event.kept for event in events] == [True, False, True]
    assert events[1].reason == "the outputs do not hold: logits on input: is off"
    assert verified.shipped
    assert "p1" not in verified.winners
    assert len(stay) == 2


def test_a_gain_too_small_to_be_seen_stays_if_no_loss_is_possible(winners) -> None:
    events, _, _ = added(winners[:2], Bench([1.1, 1.0]))
    assert events[1].kept
    assert "too small to be seen, no loss beyond 2 %" in events[1].reason


def test_where_nobody_stays_nothing_is_shipped_and_the_first_attempt_is_told(winners) -> None:
    bench = Bench([0.9, 0.9, 0.9])
    events, verified, stay = added(winners, bench)
    assert [event.kept for event in events] == [False] * 3
    assert (verified.shipped, verified.winners, stay) == (False, {"p0": "c0"}, [])


@pytest.mark.parametrize("gains", [(1.2, 1.1, 1.05), (1.2, 0.9, 1.1), (0.9, 0.9, 0.9)])
@pytest.mark.parametrize("decided", [1, 2, 3])
def test_a_run_taken_up_again_times_no_winner_twice_and_verifies_what_stays(winners, gains, decided) -> None:
    whole, verified, stay = added(winners, Bench(gains))
    bench = Bench(gains)
    events, again, stays = added(winners, bench, earlier=whole[:decided])
    assert [*whole[:decided], *events] == whole
    assert (again.shipped, again.winners, stays) == (verified.shipped, verified.winners, stay)
    chosen = tuple(place for place in range(3) if whole[place].kept) or (0,)
    assert bench.asked[-1] == [chosen], "what stays is verified by times of this sitting"
    asked = {arm[-1] for batch in bench.asked[:-1] for arm in batch}
    assert asked >= set(range(decided, 3)) and not asked & {
        place for place in range(decided) if not whole[place].kept
    }


def test_a_winner_beside_others_than_before_is_timed_anew(winners) -> None:
    whole, _, _ = added(winners, Bench([1.2, 1.1, 1.05]))
    bench = Bench([1.2, 1.1, 1.05])
    added([winners[1], winners[0], winners[2]], bench, earlier=whole)
    assert bench.asked[0] == [(0,), (0, 1), (0, 1, 2)]


def test_torch_compile_counts_where_some_processes_could_not_compile(winners) -> None:
    times = timed([90.0], compiled=80.0)
    (row,) = times[0].modes
    times[0] = times[0].model_copy(update={"modes": (row.model_copy(update={"compiled_us": ()}),)})
    found = verification(winners[0], times, 0)
    assert found.compiled_ratio == pytest.approx(80 / 90, rel=0.02)
    assert not found.shipped


@pytest.mark.parametrize(("until", "processes"), [(math.inf, 5), (-math.inf, 3)])
def test_a_spent_budget_leaves_the_fewest_processes_and_says_so(
    make, monkeypatch: pytest.MonkeyPatch, until: float, processes: int
) -> None:
    monkeypatch.setattr(splicing, "ask_model", lambda *_: timed([80.0])[0])
    request = VerifyModel(spec="m.py:build", threads=1, winners=(), rounds=ROUNDS, seed=0)
    found = splicing.asked(splicing.Whole(request, 5, lambda _: None, until), ((0,),))
    assert len(found) == processes
    notes = verification((), found, 0).notes
    assert notes == (() if processes == 5 else ("3 of 5 processes: the budget is spent",))


def test_a_winner_that_is_never_called_goes(winners) -> None:
    def never(arms: Sequence[tuple[int, ...]]) -> list[ModelTimed]:
        return timed([80.0] * len(arms), calls=[4] * len(arms))

    events, _, stay = added(winners[:2], never)
    assert [event.kept for event in events] == [True, False]
    assert (events[1].reason, len(stay)) == ("it was never called", 1)


def test_a_faster_splice_is_told_against_all_three() -> None:
    found = verification((), timed([80.0]), 0)
    assert (found.shipped, found.mode) == (True, "plain")
    for ratio, low, high, exact in (
        (found.ratio, found.ci_low, found.ci_high, 100 / 80),
        (found.eager_ratio, found.eager_ci_low, found.eager_ci_high, 110 / 80),
        (found.compiled_ratio, found.compiled_ci_low, found.compiled_ci_high, 95 / 80),
    ):
        assert ratio == pytest.approx(exact, rel=0.01)
        assert low <= ratio <= high


def test_a_splice_behind_torch_compile_is_shipped_only_to_those_who_asked_for_more_than_eager() -> None:
    times = timed([80.0], compiled=75.0)
    found = verification((), times, 0, Against.COMPILED)
    assert (found.shipped, "over torch.compile" in found.reason) == (False, True)
    assert verification((), times, 0, Against.EAGER).shipped


def test_without_torch_compile_there_is_no_ratio_over_it() -> None:
    found = verification((), timed([80.0], compiled=None), 0)
    assert (found.shipped, found.compiled_ratio) == (True, None)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (timed([80.0], problems=["is off"]), "outputs drift: logits on input: is off"),
        (timed([100.0]), "interval reaches 1"),
        (timed([120.0]), "interval reaches 1"),
        (timed([95.0], eager=90.0), "interval reaches 1"),
        (timed([80.0], calls=[0]), "never called"),
    ],
)
def test_what_does_not_pay_or_drifts_is_not_shipped(times: list[ModelTimed], words: str) -> None:
    found = verification((), times, 0)
    assert (found.shipped, words in found.reason) == (False, True)


def test_a_gain_under_cuda_graphs_alone_is_said_to_be_that() -> None:
    found = verification((), timed([105.0], graph=[80.0]), 0)
    assert (found.shipped, found.mode, "under a CUDA graph" in found.reason) == (True, "graph", True)
    assert found.notes[0].startswith("plain: x0.95")


@given(st.sets(st.integers(0, 11), min_size=1), st.integers(12, 12))
def test_the_smallest_failing_set_is_exactly_the_culprits(guilty: set[int], count: int) -> None:
    def fails(tries):
        return [guilty <= set(one) for one in tries]

    assert set(smallest_failing(tuple(range(count)), fails)) == guilty


@given(st.sets(st.integers(0, 9)))
def test_several_culprits_are_found_one_after_the_other(guilty: set[int]) -> None:
    def fails(tries):
        return [bool(guilty & set(one)) for one in tries]

    found = all_failing(tuple(range(10)), fails)
    assert sorted(found) == [(one,) for one in sorted(guilty)]

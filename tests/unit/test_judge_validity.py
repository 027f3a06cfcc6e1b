"""How the benchmark of the clock's decisions sums up its rows: bounds, the smallest effect seen, replays of chance."""

import json
import random
from itertools import pairwise

import pytest
from benchmarks.judge_validity import (
    NEVER,
    NULL_ALPHAS,
    REPLAYED_PAIRS,
    RESULTS,
    Exchange,
    Row,
    is_kept,
    lower_bound,
    null_replays,
    replay,
    smallest_proven,
    upper_bound,
)

from kernelwright.core.stats import KeepRule, standing
from kernelwright.core.verdict import Outcome


def tries(kind: str, effect: float, kept: int, count: int) -> list[Row]:
    """Return rows of one effect, so many of them kept."""
    outcomes = [Outcome.FASTER] * kept + [Outcome.NOT_PROVEN] * (count - kept)
    return [
        {"key": f"effect/{kind}/{number:03d}/0", "effect": effect, "outcome": outcome.value}
        for number, outcome in enumerate(outcomes)
    ]


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [
        (0, 504, 0.0, 0.00593),
        (20, 20, 0.86089, 1.0),
        (14, 20, 0.49218, 0.86045),
        (1000, 20000, 0.04749, 0.05261),
    ],
)
def test_bounds_of_a_rate_are_the_exact_binomial_ones(hits: int, count: int, low: float, high: float) -> None:
    assert (lower_bound(hits, count), upper_bound(hits, count)) == pytest.approx((low, high), abs=2e-5)


def test_the_smallest_effect_is_the_smallest_gain_kept_in_19_of_20_tries() -> None:
    rows = [
        *tries("cpu", -0.05, 20, 20),
        *tries("cpu", 0.02, 18, 20),
        *tries("cpu", 0.05, 19, 20),
        *tries("cpu", 0.1, 20, 20),
    ]
    assert smallest_proven(rows, "cpu") == "+5%"
    assert smallest_proven(rows[:40], "cpu") == "none"
    assert smallest_proven(rows, "cuda") == "none: not tried"


def test_a_replay_is_made_of_blocks_of_single_decisions() -> None:
    rows: list[Row] = [{"log_ratios": [float(10 * row + place) for place in range(9)]} for row in range(5)]
    drawn = replay(rows, random.Random(1))
    assert len(drawn) == REPLAYED_PAIRS
    # A block ends where its decision does; the next one begins anywhere.
    assert all(after == before + 1 or before % 10 == 8 for before, after in pairwise(drawn))


def test_exchanged_arms_make_chance_of_a_gain_of_all_pairs() -> None:
    rows: list[Row] = [{"log_ratios": [0.01, 0.02, 0.03]}]
    drawn = {kind: replay(rows, random.Random(2), kind) for kind in Exchange}
    for kind, values in drawn.items():
        assert {abs(value) for value in values} == {0.01, 0.02, 0.03}
        share = sum(value > 0 for value in values) / len(values)
        assert share == 1 if kind is Exchange.NONE else 0.35 < share < 0.65
    # Every block ends with its decision: only behind that may the sign turn.
    turned = {kind: {abs(a) for a, b in pairwise(values) if a * b < 0} for kind, values in drawn.items()}
    assert turned == {Exchange.NONE: set(), Exchange.BLOCK: {0.03}, Exchange.PAIR: {0.01, 0.02, 0.03}}


def test_at_the_null_boundary_nobody_gives_up_and_any_gain_counts() -> None:
    rule = KeepRule(smallest_gain=0.0, alpha=0.05, beta=NEVER, max_pairs=REPLAYED_PAIRS)
    losses = [-1.0] * REPLAYED_PAIRS
    assert standing(losses[:-1], rule).outcome is None
    assert standing(losses, rule).outcome is Outcome.NOT_PROVEN
    assert is_kept([1e-9] * 20, rule)
    assert not is_kept([1e-9] * 20, KeepRule(alpha=0.05))


def test_single_pairs_without_an_order_are_kept_at_most_as_often_as_alpha_says() -> None:
    rng = random.Random(3)
    rows: list[Row] = [{"log_ratios": [rng.gauss(0, 0.01)]} for _ in range(2000)]
    found = null_replays(rows, random.Random(4), 200)
    for kind in (Exchange.PAIR, Exchange.BLOCK):
        by_lot = found[f"{kind.value}, alpha 0.05"]
        assert isinstance(by_lot, dict)
        assert by_lot["rate, lower 95 %"] <= 0.05
    always = null_replays([{"log_ratios": [0.01] * 20}], random.Random(4), 10)
    assert always["as recorded, alpha 0.001"] == {
        "false keeps": 10,
        "rate, lower 95 %": 0.74113,
        "rate, upper 95 %": 1.0,
    }


@pytest.mark.parametrize("group", ["aa/cpu/B", "aa/cuda/A"])
def test_published_chance_keeps_to_alpha_where_pairs_are_free_and_to_twice_that_in_blocks(group: str) -> None:
    found = json.loads(RESULTS.read_text())["summary"][group]["replays at the null boundary"]
    assert found["replays"] == 20_000
    for alpha in NULL_ALPHAS:
        free, block = (found[f"{kind.value}, alpha {alpha}"] for kind in (Exchange.PAIR, Exchange.BLOCK))
        assert 0 < free["false keeps"] <= alpha * 20_000
        assert block["rate, upper 95 %"] <= 2 * alpha

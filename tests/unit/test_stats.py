"""The statistics keep their promises: robust, reproducible, and a false-keep rate that is a theorem."""

import math
import random
from itertools import pairwise, product
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.core.stats import (
    KeepRule,
    SignEvidence,
    block_bootstrap,
    hodges_lehmann,
    is_not_slower,
    mad,
    quantile,
    ratchet_agrees,
    sign_evidence,
    sign_of,
    standing,
)
from kernelwright.core.verdict import Outcome

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20)
SIGNS = st.lists(st.sampled_from((-1, 0, 1)), max_size=40)


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-6)


@given(VALUES, st.floats(-1e3, 1e3))
def test_hodges_lehmann_moves_with_its_values(values, shift):
    assert hodges_lehmann([v + shift for v in values]) == close(hodges_lehmann(values) + shift)


@given(VALUES, st.floats(-50, 50))
def test_hodges_lehmann_scales_with_its_values(values, scale):
    assert hodges_lehmann([v * scale for v in values]) == close(hodges_lehmann(values) * scale)


@given(VALUES)
def test_hodges_lehmann_lies_among_its_values_and_ignores_their_order(values):
    found = hodges_lehmann(values)
    assert min(values) <= found <= max(values)
    assert hodges_lehmann(values[::-1]) == found


@given(st.lists(st.floats(0, 1), min_size=7, max_size=20), st.sampled_from((-1e12, 1e12)))
def test_one_outlier_cannot_carry_hodges_lehmann_away(values, outlier):
    assert min(values) <= hodges_lehmann([*values, outlier]) <= max(values)


@pytest.mark.parametrize(("values", "expected"), [([5.0], 5.0), ([1, 2], 1.5), ([1, 2, 9], 3.5)])
def test_hodges_lehmann_is_the_median_of_pairwise_means(values, expected):
    assert hodges_lehmann(values) == expected


def test_hodges_lehmann_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        hodges_lehmann([])


@pytest.mark.parametrize(("values", "expected"), [([3], 0), ([1, 1, 4], 0), ([1, 2, 3, 4, 100], 1)])
def test_mad_is_the_median_distance_from_the_median(values, expected):
    assert mad(values) == expected


@given(VALUES, st.floats(-100, 100), st.floats(-10, 10))
def test_mad_ignores_shifts_and_follows_scales(values, shift, scale):
    assert mad([v * scale + shift for v in values]) == pytest.approx(abs(scale) * mad(values), abs=1e-6)


@given(VALUES, st.floats(0, 1), st.floats(0, 1))
def test_quantiles_are_ordered_and_end_at_the_extremes(values, one, other):
    ordered = sorted(values)
    assert quantile(ordered, 0) == ordered[0]
    assert quantile(ordered, 1) == ordered[-1]
    assert quantile(ordered, min(one, other)) <= quantile(ordered, max(one, other)) + 1e-9
    assert quantile(ordered, 0.5) == pytest.approx(median(ordered), abs=1e-9)


def typical_groups(seed: int, groups: int = 4, size: int = 30) -> list[list[float]]:
    rng = random.Random(seed)
    return [[rng.gauss(10, 1) for _ in range(size)] for _ in range(groups)]


@pytest.mark.parametrize("statistic", [median, fmean])
@pytest.mark.parametrize("seed", range(4))
def test_bootstrap_interval_contains_the_plug_in_value(seed, statistic):
    groups = typical_groups(seed)
    low, high = block_bootstrap(groups, random.Random(1), resamples=100, block=5, statistic=statistic)
    assert low < statistic([value for group in groups for value in group]) < high
    assert high - low < 2


def test_bootstrap_is_the_same_for_the_same_seed_and_leaves_the_global_generator_alone():
    groups = typical_groups(5)
    before = random.getstate()
    one = block_bootstrap(groups, random.Random(7), resamples=40)
    assert block_bootstrap(groups, random.Random(7), resamples=40) == one
    assert block_bootstrap(groups, random.Random(8), resamples=40) != one
    assert random.getstate() == before


def test_bootstrap_widens_with_the_level():
    groups = typical_groups(6)
    narrow = block_bootstrap(groups, random.Random(7), resamples=100, level=0.5)
    wide = block_bootstrap(groups, random.Random(7), resamples=100, level=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_bootstrap_of_a_single_group_or_a_single_value_works():
    assert block_bootstrap([[4.0]], random.Random(0), resamples=10) == (4.0, 4.0)
    assert block_bootstrap([[], [4.0, 4.0]], random.Random(0), resamples=10) == (4.0, 4.0)
    low, high = block_bootstrap([[1.0, 2.0, 3.0]], random.Random(0), resamples=100, block=1)
    assert 1 <= low < 2 < high <= 3


@pytest.mark.parametrize("groups", [[], [[]], [[], []]])
def test_bootstrap_of_nothing_is_refused(groups):
    with pytest.raises(ValueError, match="no values"):
        block_bootstrap(groups, random.Random(0))


@pytest.mark.parametrize(("value", "sign"), [(3.5, 1), (-1e-300, -1), (0.0, 0), (-0.0, 0), (math.inf, 1)])
def test_sign_of_a_number(value, sign):
    assert sign_of(value) == sign


@pytest.mark.parametrize("count", range(11))
def test_evidence_is_a_martingale_under_fair_signs(count):
    values = [sign_evidence(signs, 0) for signs in product((-1, 1), repeat=count)]
    assert math.fsum(values) / 2**count == pytest.approx(1, abs=1e-12)


@given(SIGNS)
def test_next_fair_sign_leaves_the_expected_evidence_unchanged(signs):
    evidence = SignEvidence()
    for sign in signs:
        evidence = evidence.after(sign)
    expected = (evidence.after(1).value + evidence.after(-1).value) / 2
    assert expected == pytest.approx(evidence.value)
    assert evidence.after(0) == evidence
    assert evidence.value >= 0


@given(SIGNS, st.randoms(use_true_random=False))
def test_evidence_depends_on_the_counts_of_signs_alone(signs, rng):
    shuffled = rng.sample(signs, len(signs))
    assert sign_evidence(shuffled, 0) == pytest.approx(sign_evidence(signs, 0))


def reach(limit: float, length: int) -> list[int]:
    """Return, per number of signs, how many must be positive for the evidence to reach a limit."""
    columns, needed = [SignEvidence()], [0 if limit <= 1 else 1]
    for count in range(1, length + 1):
        # Entry p of a column: the evidence of p positive signs among `count`.
        columns = [columns[0].after(-1), *(evidence.after(1) for evidence in columns)]
        needed.append(next((p for p, e in enumerate(columns) if e.value >= limit), count + 1))
    return needed


@pytest.fixture(scope="module")
def needed() -> list[int]:
    return reach(1000, 200)


def test_fair_coins_reach_a_thousand_no_more_often_than_ville_allows(needed):
    rng, crossed = random.Random(20240607), 0
    for _ in range(3000):
        bits, positive = rng.getrandbits(200), 0
        for count in range(1, 201):
            positive += bits & 1
            bits >>= 1
            if positive >= needed[count]:
                crossed += 1
                break
    assert crossed / 3000 <= 0.003


def test_exact_chance_of_ever_reaching_a_thousand_is_below_one_in_a_thousand(needed):
    alive, crossed = {0: 1.0}, 0.0
    for count in range(1, 201):
        after: dict[int, float] = {}
        for positive, chance in alive.items():
            for gained in (0, 1):
                after[positive + gained] = after.get(positive + gained, 0.0) + chance / 2
        crossed += sum(chance for positive, chance in after.items() if positive >= needed[count])
        alive = {positive: chance for positive, chance in after.items() if positive < needed[count]}
    assert 1e-4 < crossed <= 1e-3


PLAIN = KeepRule()


def test_thirteen_faster_pairs_suffice_and_twelve_do_not():
    assert standing([0.05] * 12, PLAIN).outcome is None
    reached = standing([0.05] * 13, PLAIN)
    assert reached.outcome is Outcome.FASTER
    assert reached.e_faster >= 1000 > standing([0.05] * 12, PLAIN).e_faster


def test_only_a_gain_above_the_smallest_worth_keeping_is_evidence():
    patient = KeepRule(beta=1e-300)
    assert standing([math.log1p(0.004)] * 400, patient).outcome is Outcome.NOT_PROVEN
    assert standing([math.log1p(0.004)] * 400, patient).e_faster < 1
    assert standing([math.log1p(0.006)] * 13, patient).outcome is Outcome.FASTER


def test_gain_worth_keeping_but_not_worth_waiting_for_is_given_up():
    assert standing([math.log1p(0.006)] * 13, PLAIN).outcome is Outcome.NOT_FASTER
    assert standing([math.log1p(0.011)] * 13, PLAIN).outcome is Outcome.FASTER


def test_futility_fires_on_a_clearly_slower_challenger():
    rng = random.Random(3)
    slower = [rng.gauss(-0.1, 0.02) for _ in range(60)]
    reached = standing(slower, PLAIN)
    assert reached.outcome is Outcome.NOT_FASTER
    assert standing(slower[:6], PLAIN).outcome is None
    assert standing(slower[:7], PLAIN).outcome is Outcome.NOT_FASTER
    assert reached.e_not_faster >= 20 > 1 > reached.e_faster


def test_undecided_comparison_ends_as_not_proven_at_the_last_pair():
    rule = KeepRule(max_pairs=30)
    undecided = [0.05, -0.05] * 30
    assert standing(undecided[:29], rule).outcome is None
    assert standing(undecided[:30], rule).outcome is Outcome.NOT_PROVEN
    assert standing(undecided, rule) == standing(undecided[:30], rule)


def test_nothing_is_proven_before_the_first_pair():
    assert standing([], PLAIN).outcome is None
    assert standing([], PLAIN).e_faster == standing([], PLAIN).e_not_faster == 1


@given(st.lists(st.sampled_from((-0.05, 0.007, 0.05, 0.06, 0.07)), max_size=40), st.integers(5, 40))
def test_outcome_once_reached_never_changes(log_ratios, max_pairs):
    rule = KeepRule(alpha=0.05, beta=0.2, max_pairs=max_pairs)
    stands = [standing(log_ratios[:count], rule) for count in range(len(log_ratios) + 1)]
    for before, after in pairwise(stands):
        assert before.outcome is None or after == before


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_equal_arms_on_a_drifting_machine_are_kept_no_more_often_than_alpha_allows(alpha):
    # The size of the disturbance is autocorrelated, as a busy machine's is; which arm it hits is a fair coin, as
    # the random order within each pair makes it.
    rng = random.Random(11)
    rule = KeepRule(smallest_gain=0, wanted_gain=0.5, alpha=alpha, beta=1e-9, max_pairs=40)
    runs, kept = 300, 0
    for _ in range(runs):
        level, log_ratios = rng.gauss(0, 1), []
        for _ in range(40):
            level = 0.95 * level + rng.gauss(0, math.sqrt(1 - 0.95**2))
            log_ratios.append(rng.choice((-1, 1)) * 0.02 * math.exp(level))
        kept += standing(log_ratios, rule).outcome is Outcome.FASTER
    assert kept / runs <= alpha


def test_gain_of_the_whole_does_not_hide_a_case_that_got_slower():
    reached = standing([0.10] * 20, PLAIN, [[0.30] * 20, [-0.05] * 20])
    assert (reached.outcome, reached.slower_case) == (Outcome.NOT_FASTER, 1)
    assert standing([0.10] * 20, PLAIN, [[0.30] * 20, [0.0] * 20]).outcome is Outcome.FASTER


def test_keep_waits_until_a_loss_is_ruled_out_on_every_case():
    wavering = [0.05, -0.05] * 200
    reached = standing([0.10] * 30, PLAIN, [[0.30] * 30, wavering[:30]])
    assert (reached.outcome, reached.e_faster >= 1000) == (None, True)
    cleared = wavering[:13] + [0.05] * 30
    assert standing([0.10] * 43, PLAIN, [[0.30] * 43, cleared]).outcome is Outcome.FASTER


def test_ratchet_agrees_only_if_the_direct_gain_can_be_the_product_of_the_claims():
    claims = [(1.05, 1.07)] * 5
    assert ratchet_agrees((1.30, 1.36), claims)
    assert not ratchet_agrees((1.01, 1.20), claims)
    assert not ratchet_agrees((1.45, 1.60), claims)


def test_ratchet_lets_keeps_for_simplicity_cost_no_more_together_than_one_may():
    claims = [(1.20, 1.21), *[(1.0, 1.002)] * 4]
    assert ratchet_agrees((1.195, 1.199), claims, 0.99)
    assert not ratchet_agrees((1.178, 1.182), claims, 0.99)
    # By their own words, each 0.4 % slower, the same losses would agree with themselves.
    assert ratchet_agrees((1.178, 1.182), [(1.20, 1.21), *[(0.995, 0.997)] * 4])


def raced(rng: random.Random, ratio: float, scatter: float) -> list[float]:
    """Return the pairs of a race as the keep rule stops it."""
    rule, pairs = KeepRule(max_pairs=60), list[float]()
    while standing(pairs, rule).outcome is None:
        pairs.append(rng.gauss(math.log(ratio), scatter))
    return pairs


@pytest.mark.parametrize("scatter", [0.001, 0.005, 0.02])
@pytest.mark.parametrize("ratio", [0.98, 0.99])
def test_slower_challenger_is_hardly_ever_found_equal_wherever_it_is_stopped(ratio, scatter):
    # `is_not_slower` looks at every prefix: accepted here is accepted at any stopping time.
    rng, runs = random.Random(5), 400
    accepted = sum(
        is_not_slower([rng.gauss(math.log(ratio), scatter) for _ in range(60)], PLAIN) for _ in range(runs)
    )
    assert accepted / runs <= PLAIN.equal_alpha


@pytest.mark.parametrize(("scatter", "least"), [(0.001, 1.0), (0.003, 0.97), (0.007, 0.6)])
def test_equal_challenger_is_mostly_found_equal_by_the_pairs_futility_leaves(scatter, least):
    rng, runs = random.Random(5), 200
    races = [raced(rng, 1.0, scatter) for _ in range(runs)]
    assert sum(is_not_slower(pairs, PLAIN) for pairs in races) / runs >= least


@pytest.mark.parametrize(("below", "pairs"), [(0, 7), (1, 11), (2, 14)])
def test_as_many_pairs_are_needed_as_is_said(below, pairs):
    values = [-0.05] * below + [0.0] * (pairs - below)
    assert is_not_slower(values, PLAIN)
    assert not is_not_slower(values[:-1], PLAIN)


@given(st.lists(st.sampled_from((-0.05, -0.005, 0.05)), max_size=30), st.lists(st.just(-0.05), max_size=30))
def test_what_was_found_equal_stays_so_whatever_pairs_follow(before, after):
    assert is_not_slower([*before, *after], PLAIN) >= is_not_slower(before, PLAIN)


def test_equal_on_the_whole_does_not_hide_a_case_that_got_slower():
    assert is_not_slower([0.0] * 7, PLAIN, [[0.01] * 7, [-0.01] * 7])
    assert not is_not_slower([0.0] * 7, PLAIN, [[0.03] * 7, [-0.03] * 7])
    assert not is_not_slower([0.0] * 7, PLAIN, [[0.03] * 7, [-0.03, *[0.0] * 6]])
    assert not is_not_slower([0.0] * 7, PLAIN, [[0.0] * 7, []])

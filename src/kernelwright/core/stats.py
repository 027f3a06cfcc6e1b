"""The statistics the judge decides by: robust location, intervals, and a test that may be peeked at.

`SignEvidence` is a sign e-process. If the challenger is not faster than the threshold in median, each factor has
conditional mean at most 1, so by Ville's inequality the evidence ever reaches 1/alpha with probability at most
alpha, at any stopping time. Nothing is assumed of the noise but that the labels of a pair are exchangeable.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from kernelwright.core.verdict import Outcome

STAKES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Fractions of the wealth bet on each sign; the evidence is the average over them."""


def mad(values: Sequence[float]) -> float:
    """Return the median absolute deviation from the median."""
    centre = median(values)
    return median(abs(value - centre) for value in values)


def hodges_lehmann(values: Sequence[float]) -> float:
    """Return the median of all pairwise means: as robust as needed, far more efficient than the median."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values to locate")
    return median((a + b) / 2 for i, a in enumerate(ordered) for b in ordered[i:])


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Return the linearly interpolated quantile of an ascending sequence."""
    place = fraction * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _resample(group: Sequence[float], block: int, rng: random.Random) -> list[float]:
    """Return a circular block resample of one group, as long as the group."""
    drawn: list[float] = []
    while len(drawn) < len(group):
        start = rng.randrange(len(group))
        drawn.extend(group[(start + step) % len(group)] for step in range(min(block, len(group))))
    return drawn[: len(group)]


def block_bootstrap(
    groups: Sequence[Sequence[float]],
    rng: random.Random,
    *,
    level: float = 0.95,
    block: int = 20,
    resamples: int = 1000,
    statistic: Callable[[Sequence[float]], float] = median,
) -> tuple[float, float]:
    """Return the interval of a statistic: resample groups (processes), then blocks of rounds inside each."""
    filled = [group for group in groups if group]
    if not filled:
        raise ValueError("no values to resample")
    estimates = []
    for _ in range(resamples):
        chosen = rng.choices(filled, k=len(filled))
        estimates.append(statistic([value for group in chosen for value in _resample(group, block, rng)]))
    estimates.sort()
    tail = (1 - level) / 2
    return quantile(estimates, tail), quantile(estimates, 1 - tail)


@dataclass(frozen=True)
class SignEvidence:
    """Evidence gathered from signs so far: one wealth per stake."""

    wealth: tuple[float, ...] = (1.0,) * len(STAKES)

    def after(self, sign: int) -> "SignEvidence":
        """Return the evidence after one more sign (-1, 0 or 1)."""
        return SignEvidence(
            tuple(w * (1 + stake * sign) for w, stake in zip(self.wealth, STAKES, strict=True))
        )

    @property
    def value(self) -> float:
        """Return the e-value."""
        return fmean(self.wealth)


def sign_of(value: float) -> int:
    """Return -1, 0 or 1."""
    return (value > 0) - (value < 0)


def sign_evidence(values: Sequence[float], threshold: float) -> float:
    """Return the e-value against `median <= threshold`."""
    evidence = SignEvidence()
    for value in values:
        evidence = evidence.after(sign_of(value - threshold))
    return evidence.value


@dataclass(frozen=True)
class KeepRule:
    """When a challenger is proven faster, and when the attempt is futile."""

    smallest_gain: float = 0.005
    """Gain worth keeping: evidence is counted against a ratio of 1 + this."""
    wanted_gain: float = 0.010
    """Gain worth waiting for: futility is counted against a ratio of 1 + this."""
    alpha: float = 0.001
    """Probability of keeping a challenger that is not faster by the smallest gain."""
    beta: float = 0.05
    """Probability of giving up on a challenger that has the wanted gain."""
    max_pairs: int = 400
    """Pairs after which the comparison ends as not proven."""
    case_margin: float = 0.02
    """Loss no single case may show: a keep needs more than this ruled out on every case."""
    case_alpha: float = 0.05
    """Probability of ruling it out, or of finding it, by mistake on one case."""
    equal: float = 0.99
    """Ratio down to which a challenger counts as equally fast."""
    equal_alpha: float = 0.05
    """Probability of calling a challenger equally fast that is slower than that."""


@dataclass(frozen=True)
class Standing:
    """Where a sequential comparison stands."""

    outcome: Outcome | None
    """None while more pairs are needed."""
    e_faster: float
    e_not_faster: float
    slower_case: int | None = None
    """Place of a case proven slower by more than the margin; it ends the comparison whatever the others gain."""


def standing(log_ratios: Sequence[float], rule: KeepRule, cases: Sequence[Sequence[float]] = ()) -> Standing:
    """Return what the pairs so far prove: ln(incumbent time / challenger time), one number per fresh pair.

    `cases` holds the same per case, pair by pair. Everything stops at the first crossing, so the result of a prefix
    never changes when pairs are added after it.
    """
    low, high, margin = (
        math.log1p(gain) for gain in (rule.smallest_gain, rule.wanted_gain, rule.case_margin)
    )
    faster, futile = SignEvidence(), SignEvidence()
    slower, cleared = [SignEvidence()] * len(cases), [SignEvidence()] * len(cases)
    is_faster = False
    for number, value in enumerate(log_ratios[: rule.max_pairs]):
        faster, futile = faster.after(sign_of(value - low)), futile.after(sign_of(high - value))
        for place, values in enumerate(cases):
            slower[place] = slower[place].after(sign_of(-margin - values[number]))
            cleared[place] = cleared[place].after(sign_of(values[number] + margin))
            if slower[place].value >= 1 / rule.case_alpha:
                return Standing(Outcome.NOT_FASTER, faster.value, futile.value, place)
        # Crossed once is crossed: the bound holds at any stopping time.
        is_faster = is_faster or faster.value >= 1 / rule.alpha
        if is_faster and all(one.value >= 1 / rule.case_alpha for one in cleared):
            return Standing(Outcome.FASTER, faster.value, futile.value)
        if not is_faster and futile.value >= 1 / rule.beta:
            return Standing(Outcome.NOT_FASTER, faster.value, futile.value)
    outcome = Outcome.NOT_PROVEN if len(log_ratios) >= rule.max_pairs else None
    return Standing(outcome, faster.value, futile.value)


def is_not_slower(log_ratios: Sequence[float], rule: KeepRule, cases: Sequence[Sequence[float]] = ()) -> bool:
    """Tell whether the pairs prove a challenger equally fast, and none of its cases slower than one may be.

    The pairs may have been stopped for any reason. Seven that all lie above the bound are enough (evidence 31), eleven
    if one of them does not, fourteen if two do not. Futility takes seven too: simulated equal arms that scatter by
    0.3 % from pair to pair are found equal when it stops them in 99 of 100 races, at 0.7 % in 73, at 2 % in 50.
    """
    return _is_above(log_ratios, math.log(rule.equal), rule.equal_alpha) and all(
        _is_above(values, -math.log1p(rule.case_margin), rule.case_alpha) for values in cases
    )


def _is_above(values: Sequence[float], threshold: float, alpha: float) -> bool:
    """Tell whether the evidence against `median <= threshold` ever reached 1/alpha; crossed once is crossed."""
    evidence = SignEvidence()
    for value in values:
        evidence = evidence.after(sign_of(value - threshold))
        if evidence.value >= 1 / alpha:
            return True
    return False


def ratchet_agrees(
    direct: tuple[float, float], claims: Sequence[tuple[float, float]], loss: float = 1.0
) -> bool:
    """Tell whether the directly measured gain of many keeps (an interval) can be the product of their claims.

    Keeps for simplicity claim 1: measured losses would multiply to a drift that agrees with itself. `loss` is what all
    of them together may cost.
    """
    low, high = math.prod(claim[0] for claim in claims), math.prod(claim[1] for claim in claims)
    return direct[0] <= high and low * loss <= direct[1]

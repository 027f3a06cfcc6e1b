"""The error budget: how wrong an output may be, relative to how wrong the framework itself is.

Both are measured against float64 in units of a per-element scale. Comparison is always "pass if within", so a NaN
never passes by accident, and the map of non-finite values must be the one float64 gives. The rules:
1. rms, 2. far tail and maximum against the framework's own, 3. a hard bound on every element from the depth of its
sum, 4. no systematic sign, 5. no faster growth with the length of a reduction, 6. the map of non-finite values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

RMS_FACTOR, RMS_SLACK = 1.5, 0.5
TAIL_FACTOR, TAIL_SLACK = 2.0, 1.0
MAX_FACTOR, MAX_SLACK = 4.0, 1.0
"""Factors on the framework's own error; slacks in units of one rounding (see `_roundings`)."""
HARDWARE = 2.0
"""Roundings of fp32, at the element's scale, that a processor's own functions may cost on top of that.

A GPU's reciprocal root, power and quotient are within 2 to 4 of one; the elements of a row share them, so that a case
of two rows has two samples, and the framework's own may be lucky (docs/measured.md#hardware)."""
SMALL_SAMPLE = 10_000
"""A 99.9th percentile needs ten values beyond it: below this it is the maximum held to a stricter limit, and a plain
fp32 product of 7x5 failed by the luck of the framework's own 35 errors (docs/measured.md#tail)."""
TAIL, TAIL_SAMPLE = 0.999, 1 << 16
"""The percentile, and how many of the framework's errors it is taken from."""
HARD_FACTOR = 4.0
"""Times the bound of a sum in any order: elementary functions and a scale in place of the terms round a little more."""
BIAS_ERRORS, BIAS_FACTOR, BIAS_SLACK = 6.0, 2.0, 0.5
"""Standard errors a mean error may be from zero, or factor on the framework's own, or share of one rounding.

A GPU's own exponential and division are biased by 0.38 of one in fp32 (docs/measured.md#bias), truncation to a half
by 0.69."""
BIAS_SAMPLE, BIAS_ROWS = 1024, 32
"""Fewer elements, or fewer rows to take the standard error from, say nothing of a bias."""
GROWTH_SLACK = 0.15
"""By how much the exponent of the error's growth may exceed the framework's."""
FP32 = torch.finfo(torch.float32).eps / 2


class Depth(NamedTuple):
    """What an op says of the roundings behind one output element."""

    roundings: int
    """Roundings of fp32 that may pile up, in units of the error scale."""
    intermediates: int = 0
    """Roundings of intermediates to the output's own type."""


@dataclass(frozen=True)
class Verdict:
    """Whether an output is within budget, and by how much."""

    passed: bool
    reason: str
    worst_ratio: float
    """Largest error over its limit; at most 1 if passed."""


PASSED = Verdict(True, "", 0.0)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return half the spacing of numbers just above one."""
    return torch.finfo(dtype).eps / 2


def _class_map(values: torch.Tensor) -> torch.Tensor:
    """Return 0 for finite, 1 for NaN, 2 for +inf, 3 for -inf."""
    classes = torch.zeros(values.shape, dtype=torch.int8, device=values.device)
    classes[torch.isnan(values)] = 1
    classes[torch.isposinf(values)] = 2
    classes[torch.isneginf(values)] = 3
    return classes


def check_classes(values: torch.Tensor, exact: torch.Tensor, framework: torch.Tensor) -> Verdict:
    """Judge where an output is finite, infinite or NaN."""
    found = _class_map(values)
    mismatched = int((found != _class_map(exact.to(values.dtype))).sum())
    # Where even the framework overflows differently from float64, its map is acceptable too.
    if mismatched and int((found != _class_map(framework)).sum()):
        reason = f"{mismatched} elements are finite, infinite or NaN where float64 says otherwise"
        return Verdict(False, reason, math.inf)
    return PASSED


class _Errors(NamedTuple):
    """Signed errors of the finite elements in units of their scale."""

    own: torch.Tensor
    theirs: torch.Tensor
    resolved: torch.Tensor
    """Magnitude of the answer, at least the smallest normal number, in the same units."""
    exact: torch.Tensor
    is_whole: bool
    """Whether every element is finite, so that rows are still rows."""
    dtype: torch.dtype
    """The output's own type."""

    @property
    def roundoff(self) -> float:
        """Return half the spacing of the output's numbers just above one."""
        return unit_roundoff(self.dtype)

    @property
    def rounding(self) -> torch.Tensor:
        """Return what rounding alone may cost: the output's own, and one of fp32 at the scale of the sum behind it."""
        return self.resolved * self.roundoff + FP32


def _errors(
    values: torch.Tensor, exact: torch.Tensor, framework: torch.Tensor, scale: torch.Tensor
) -> _Errors | None:
    """Return the errors, or None if no element is finite."""
    # Below the smallest normal number of the output type nothing can be resolved: zeros would pass as good answers.
    number = torch.finfo(values.dtype)
    unit, magnitude = scale.clamp_min(number.tiny), exact.abs()
    own, theirs = ((part.double() - exact).div_(unit).float() for part in (values, framework))
    # An infinity or a NaN anywhere makes one of these infinite or NaN; a false alarm only costs the longer way.
    is_whole = float(magnitude.max()) <= number.max and all(
        math.isfinite(float(part.sum())) for part in (own, theirs, unit)
    )
    if is_whole:
        resolved = magnitude.clamp_min_(number.tiny).div_(unit).float()
        return _Errors(own, theirs, resolved, exact, True, values.dtype)
    finite = torch.isfinite(exact) & torch.isfinite(values) & torch.isfinite(framework)
    if not bool(finite.any()):
        return None
    values, exact, framework, scale = (part[finite] for part in (values, exact, framework, scale))
    # Beside a planted infinity a scale may be infinite or NaN where the answer is finite.
    unit = torch.where(torch.isfinite(scale), scale, exact.abs().max()).clamp_min(number.tiny)
    own, theirs = ((part.double() - exact).div_(unit).float() for part in (values, framework))
    resolved = (exact.abs().clamp_min(number.tiny) / unit).float()
    return _Errors(own, theirs, resolved, exact, False, values.dtype)


def check_whole(
    values: torch.Tensor,
    exact: torch.Tensor,
    framework: torch.Tensor,
    scale: torch.Tensor,
    depth: Depth | None,
) -> Verdict:
    """Judge one output by every rule, all of it at once."""
    errors = _errors(values, exact, framework, scale)
    if errors is None or not errors.is_whole:
        classes = check_classes(values, exact, framework)
        if errors is None or not classes.passed:
            return classes
    own, theirs, rounding = errors.own.abs(), errors.theirs.abs(), errors.rounding
    free = HARDWARE * FP32
    limits = {
        "rms": (_rms(own), RMS_FACTOR * _rms(theirs) + RMS_SLACK * _rms(rounding) + free),
        "maximum": (
            float(own.max()),
            MAX_FACTOR * float(theirs.max()) + MAX_SLACK * float(rounding.max()) + free,
        ),
    }
    if own.numel() >= SMALL_SAMPLE:
        limit = TAIL_FACTOR * tail(_sampled(theirs)) + TAIL_SLACK * tail(_sampled(rounding)) + free
        # Counting those beyond decides, in one pass; the percentile is for the reason, and a GPU takes half a second to
        # find it among 200 million.
        is_within = int((own > limit).sum()) <= own.numel() - int(TAIL * own.numel())
        found = limits["maximum"][0] if is_within else tail(_sampled(own))
        within, beyond = min(found, limit), max(found, math.nextafter(limit, math.inf))
        limits["99.9th percentile"] = (within if is_within else beyond, limit)
    if depth is not None:
        limits["hardest element's"] = _hardest(errors, depth)
    if errors.is_whole:
        limits |= _biases(errors, BIAS_SLACK * float(rounding.mean()))
    ratios = {name: found / limit for name, (found, limit) in limits.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    if all(found <= limit for found, limit in limits.values()):
        return Verdict(True, "", ratios[worst])
    found, limit = limits[worst]
    reason = f"{worst} error {found:.3g} exceeds {limit:.3g} (units of the element's scale, against float64)"
    return Verdict(False, reason, ratios[worst])


def _rms(errors: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(errors)) / math.sqrt(errors.numel())


def tail(errors: torch.Tensor) -> float:
    """Return the 99.9th percentile."""
    return float(errors.flatten().kthvalue(int(TAIL * errors.numel())).values)


def _sampled(errors: torch.Tensor) -> torch.Tensor:
    """Return every so many-th error, enough for a percentile; an odd step visits every column."""
    return errors.flatten()[:: errors.numel() // TAIL_SAMPLE | 1]


def hard_least(depth: Depth) -> float:
    """Return the error that no element's bound is below.

    A sum of k terms in any order is within k u / (1 - k u) of its scale.
    """
    piled = depth.roundings * FP32
    return HARD_FACTOR * ((piled / (1 - piled) if piled < 0.5 else 1.0) + FP32)


def hard_bound(
    resolved: torch.Tensor, theirs: torch.Tensor, depth: Depth, number: torch.finfo
) -> torch.Tensor:
    """Return every element's own bound: an element may also be as wrong as the framework is at that very place."""
    bound = (resolved + depth.intermediates) * (HARD_FACTOR * number.eps / 2) + hard_least(depth)
    return torch.maximum(bound, theirs.abs())


def _hardest(errors: _Errors, depth: Depth) -> tuple[float, float]:
    """Return error and bound of the element that comes nearest to its bound, or is furthest beyond it."""
    largest, least = float(errors.own.abs().max()), hard_least(depth)
    if largest <= least:
        return largest, least
    bound = hard_bound(errors.resolved, errors.theirs, depth, torch.finfo(errors.dtype)).reshape(-1)
    own = errors.own.abs().reshape(-1)
    place = int((own / bound).argmax())
    return float(own[place]), float(bound[place])


def _biases(errors: _Errors, slack: float) -> dict[str, tuple[float, float]]:
    """Return mean error and limit, in the direction of the numbers and in that of zero (truncation).

    Elements of one row share the rounding of what normalises it, so the standard error comes from row means.
    """
    rows = errors.own.shape[:-1].numel() if errors.own.ndim > 1 else errors.own.numel()
    if rows < BIAS_ROWS or errors.own.numel() < BIAS_SAMPLE:
        return {}
    sign = errors.exact.sign().float()
    limits = {}
    for name, own, theirs in (
        ("mean", errors.own, errors.theirs),
        ("mean outward", errors.own * sign, errors.theirs * sign),
    ):
        means = own.reshape(rows, -1).mean(-1)
        standard = float(means.std()) / math.sqrt(rows)
        allowed = max(BIAS_ERRORS * standard, BIAS_FACTOR * abs(float(theirs.mean())), slack)
        limits[name] = (abs(float(means.mean())), allowed)
    return limits


class Growth(NamedTuple):
    """Errors at one length of a reduction."""

    length: int
    own: float
    theirs: float
    rounding: float


def growth_at(
    length: int, values: torch.Tensor, exact: torch.Tensor, framework: torch.Tensor, scale: torch.Tensor
) -> Growth:
    """Return the rms errors at one length."""
    errors = _errors(values, exact, framework, scale)
    if errors is None:
        return Growth(length, 0.0, 0.0, FP32)
    return Growth(length, _rms(errors.own), _rms(errors.theirs), _rms(errors.rounding))


def check_growth(found: Sequence[Growth]) -> Verdict:
    """Judge how the error grows: its exponent may not exceed the framework's by more than a little.

    An error that is still below the framework's own, or below one rounding, at the greatest length has not grown.
    """
    last = found[-1]
    if last.own <= max(last.theirs, last.rounding):
        return PASSED
    own, theirs = (
        _slope([(one.length, pick) for one, pick in zip(found, picked, strict=True)])
        for picked in ([one.own for one in found], [one.theirs for one in found])
    )
    limit = theirs + GROWTH_SLACK
    if own <= limit:
        return PASSED
    reason = f"error grows as length^{own:.2f} from {found[0].length} to {last.length}, at most ^{limit:.2f} is allowed"
    return Verdict(False, reason, math.inf)


def _slope(points: Sequence[tuple[int, float]]) -> float:
    """Return the least-squares slope of log error over log length."""
    pairs = [(math.log(length), math.log(max(error, FP32 / 1024))) for length, error in points]
    x_mean, y_mean = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    return sum((x - x_mean) * (y - y_mean) for x, y in pairs) / sum((x - x_mean) ** 2 for x, _ in pairs)


def check_exact(values: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor, roundings: int) -> Verdict:
    """Judge an output whose answer is known: to the bit (zero of either sign), or to a few roundings."""
    expected = exact.to(values.dtype)
    same = (values == expected) | (torch.isnan(values) & torch.isnan(expected))
    if roundings:
        unit = 2 * unit_roundoff(values.dtype) * exact.abs() + FP32 * torch.nan_to_num(scale)
        near = (values.double() - exact).abs() <= roundings * unit
        same |= near & torch.isfinite(values) & torch.isfinite(expected)
    wrong = int((~same).sum())
    if not wrong:
        return PASSED
    place = int((~same).reshape(-1).to(torch.int8).argmax())
    got, right = float(values.reshape(-1)[place]), float(expected.reshape(-1)[place])
    allowed = f"to {roundings} roundings" if roundings else "to the bit"
    reason = (
        f"{wrong} elements are not what is known {allowed}: element {place} is {got:.9g}, not {right:.9g}"
    )
    return Verdict(False, reason, math.inf)


def check_spread(
    first: torch.Tensor,
    second: torch.Tensor,
    exact: torch.Tensor,
    framework: torch.Tensor,
    scale: torch.Tensor,
) -> Verdict:
    """Judge how far two runs on the same inputs are apart: by no more than rule 1 allows an error to be."""
    if not torch.equal(_class_map(first), _class_map(second)):
        return Verdict(False, "repeated runs are not finite in the same places", math.inf)
    errors = _errors(first, exact, framework, scale)
    others = _errors(second, exact, framework, scale)
    if errors is None or others is None:
        return PASSED
    apart = _rms(errors.own - others.own)
    limit = RMS_FACTOR * _rms(errors.theirs) + RMS_SLACK * _rms(errors.rounding) + HARDWARE * FP32
    if apart <= limit:
        return Verdict(True, "", apart / limit)
    return Verdict(
        False, f"repeated runs are {apart:.3g} apart, at most {limit:.3g} is allowed", apart / limit
    )

"""The error budget: how wrong an output may be, relative to how wrong the framework itself is.

Both are measured against float64 in units of a per-element scale. Comparison is always "pass if within", so a NaN
never passes by accident, and the map of non-finite values must be the one float64 gives.
"""

from dataclasses import dataclass

import torch

RMS_FACTOR, RMS_SLACK = 1.5, 0.5
TAIL_FACTOR, TAIL_SLACK = 2.0, 1.0
MAX_FACTOR, MAX_SLACK = 4.0, 1.0
"""Factors on the framework's own error; slacks in units of one rounding (see `_roundings`)."""
SMALL_SAMPLE = 10_000
"""A 99.9th percentile needs ten values beyond it: below this it is the maximum held to a stricter limit, and a plain
fp32 product of 7x5 failed by the luck of the framework's own 35 errors (docs/measured.md#tail)."""


@dataclass(frozen=True)
class Verdict:
    """Whether an output is within budget, and by how much."""

    passed: bool
    reason: str
    worst_ratio: float
    """Largest error over its limit; at most 1 if passed."""


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


def _errors(
    values: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor, finite: torch.Tensor
) -> torch.Tensor:
    error = (values.double() - exact).abs()[finite]
    # Below the smallest normal number of the output type nothing can be resolved: zeros would pass as good answers.
    unit = scale[finite].clamp_min(torch.finfo(values.dtype).tiny)
    return torch.where(error == 0, 0.0, error / unit)


def _roundings(
    exact: torch.Tensor, scale: torch.Tensor, finite: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return what rounding alone may cost: the output's own, and one of fp32 at the scale of the sum behind it."""
    unit = scale[finite].clamp_min(torch.finfo(dtype).tiny)
    return unit_roundoff(dtype) * exact.abs()[finite] / unit + unit_roundoff(torch.float32)


def check_output(
    values: torch.Tensor, exact: torch.Tensor, framework: torch.Tensor, scale: torch.Tensor
) -> Verdict:
    """Judge one output: the candidate's values against float64 and the framework's own."""
    if values.numel() == 0:
        return Verdict(True, "", 0.0)
    expected = _class_map(exact.to(values.dtype))
    mismatched = int((_class_map(values) != expected).sum())
    # Where even the framework overflows differently from float64, its map is acceptable too.
    if mismatched and int((_class_map(values) != _class_map(framework)).sum()):
        reason = f"{mismatched} elements are finite, infinite or NaN where float64 says otherwise"
        return Verdict(False, reason, float("inf"))
    finite = torch.isfinite(exact) & torch.isfinite(values) & torch.isfinite(framework)
    if not bool(finite.any()):
        return Verdict(True, "", 0.0)
    own, theirs = _errors(values, exact, scale, finite), _errors(framework, exact, scale, finite)
    rounding = _roundings(exact, scale, finite, values.dtype)
    limits = {
        "rms": (_rms(own), RMS_FACTOR * _rms(theirs) + RMS_SLACK * _rms(rounding)),
        "maximum": (float(own.max()), MAX_FACTOR * float(theirs.max()) + MAX_SLACK * float(rounding.max())),
    }
    if own.numel() >= SMALL_SAMPLE:
        limits["99.9th percentile"] = (_tail(own), TAIL_FACTOR * _tail(theirs) + TAIL_SLACK * _tail(rounding))
    ratios = {name: found / limit for name, (found, limit) in limits.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    if all(found <= limit for found, limit in limits.values()):
        return Verdict(True, "", ratios[worst])
    found, limit = limits[worst]
    reason = f"{worst} error {found:.3g} exceeds {limit:.3g} (units of the element's scale, against float64)"
    return Verdict(False, reason, ratios[worst])


def _rms(errors: torch.Tensor) -> float:
    return float(errors.square().mean().sqrt())


def _tail(errors: torch.Tensor) -> float:
    return float(errors.kthvalue(int(0.999 * errors.numel())).values)

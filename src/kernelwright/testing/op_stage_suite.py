"""Conformance suite for ops, second part: what the judge's stages ask of an op besides sizes, inputs and reference."""

import random
from collections.abc import Callable

from kernelwright.core.case import Distribution, Layout
from kernelwright.core.ports import Op
from kernelwright.core.verdict import NullModel
from kernelwright.testing.op_facts import SEED, errors, largest_small, middle, require, small_public, widened

SAMPLES, EXECUTED_SAMPLES = 200, 8
"""Hidden cases drawn, and those of them that are run."""
HARD_FACTOR = 4.0
"""As the judge's: no element of the reference may be further from float64 than this many times its bound."""


def check_exact_points(op: Op) -> None:
    """Require points with known answers in every dtype: drawn by seed, and met by the reference in float64 itself."""
    import torch

    for dtype in op.DTYPES:
        case = middle(op, dtype)
        points = [op.exact_inputs(case, seed) for seed in range(4)]
        require(any(point is not None for point in points), f"{case.label}: no exact point")
        for point in points:
            if point is None:
                continue
            inputs, roundings = point
            require(
                list(inputs) == [spec.name for spec in case.inputs], f"{case.label}: names {list(inputs)}"
            )
            results = op.reference(inputs, case.scalars)
            exacts = op.reference(widened(inputs), case.scalars)
            scales = op.error_scale(widened(inputs), case.scalars)
            for result, exact, scale in zip(results, exacts, scales, strict=True):
                unit = (
                    torch.finfo(result.dtype).eps * exact.abs() + torch.finfo(torch.float32).eps / 2 * scale
                )
                missed = (result.double() - exact.to(result.dtype).double()).abs() > roundings * unit
                require(
                    int(missed.sum()) == 0
                    or (roundings == 0 and torch.equal(result, exact.to(result.dtype))),
                    f"{case.label}: the reference misses a point known to {roundings} roundings",
                )


def check_special_values(op: Op) -> None:
    """Require special inputs of every kind, on which reference and float64 agree where they are finite."""
    import torch

    for dtype in op.DTYPES:
        case = small_public(op)[0] if dtype is op.DTYPES[0] else middle(op, dtype)
        found = op.special_inputs(case, SEED)
        kinds = {what.split()[0] for what, _ in found}
        require({"nan", "inf", "-inf", "-0.0"} <= kinds, f"{case.label}: special values are only {kinds}")
        for what, inputs in found:
            planted = [t for t in inputs.values() if t.is_floating_point() and not t.isfinite().all()]
            require(bool(planted) or "-0.0" in what or "label" in what, f"{case.label}: {what} is not there")
            exacts = op.reference(widened(inputs), case.scalars)
            require(
                all(exact.dtype == torch.float64 for exact in exacts), f"{case.label}: {what} is not exact"
            )


def check_other_scalars(op: Op) -> None:
    """Require that every scalar can be changed on some hidden case, and that the answer changes with it."""
    import torch

    rng = random.Random(11)
    drawn = [op.sample_case(rng) for _ in range(SAMPLES)]
    varied = {name for case in drawn for change in op.other_scalars(case) for name in change}
    require(varied == set(drawn[0].scalars), f"scalars {set(drawn[0].scalars) - varied} are never changed")
    for case in [case for case in drawn if op.other_scalars(case)][:EXECUTED_SAMPLES]:
        inputs = op.make_inputs(case, Distribution.SIGNED, SEED)
        for change in op.other_scalars(case):
            before = op.reference(widened(inputs), case.scalars)
            after = op.reference(widened(inputs), {**case.scalars, **change})
            same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            require(not same, f"{case.label}: {change} changes nothing")


def check_growth(op: Op) -> None:
    """Require growth cases that differ in one axis, in rising depth, or none."""
    for dtype in op.DTYPES:
        cases = op.growth_cases(dtype)
        if not cases:
            continue
        depths = [op.depth(case) for case in cases]
        require(len(cases) >= 3 and depths == sorted(set(depths)), f"growth cases of depth {depths}")
        differing = {name for case in cases for name in case.axes if case.axes[name] != cases[0].axes[name]}
        require(len(differing) == 1, f"growth cases differ in {differing}")


def check_depth(op: Op) -> None:
    """Require a depth that bounds the reference's own error on every element."""
    import torch

    for dtype in op.DTYPES:
        case = largest_small(op, dtype)
        for distribution in (Distribution.SIGNED, Distribution.SCALED, Distribution.HEAVY_TAILED):
            for result, exact, scale in errors(op, case, op.make_inputs(case, distribution, SEED)):
                number, fp32 = torch.finfo(result.dtype), torch.finfo(torch.float32).eps / 2
                summed = op.depth(case) * fp32 / (1 - op.depth(case) * fp32)
                bound = (summed + fp32) * scale + number.eps / 2 * (
                    exact.abs() + op.ROUNDED_INTERMEDIATES * scale
                )
                worst = float(((result.double() - exact).abs() / bound.clamp_min(number.tiny)).max())
                require(
                    worst <= HARD_FACTOR,
                    f"{case.label} {distribution.value}: {worst:.1f} times its depth's bound",
                )


def check_layouts(op: Op) -> None:
    """Require that strided rows and odd addresses are served: a model's tensors are seldom anything else."""
    missing = {Layout.OFFSET, Layout.ROW_STRIDED} - set(op.REQUIRED_LAYOUTS)
    require(not missing, f"layouts {sorted(missing)} are not required")


def check_null_exceptions(op: Op) -> None:
    """Require a sentence for every null model that does not apply."""
    for model, reason in op.NULL_EXCEPTIONS.items():
        require(isinstance(model, NullModel) and len(reason.split()) > 3, f"{model}: {reason!r} is no reason")


STAGE_CHECKS: dict[str, Callable[[Op], None]] = {
    "exact points": check_exact_points,
    "special values": check_special_values,
    "other scalars": check_other_scalars,
    "growth": check_growth,
    "depth": check_depth,
    "layouts": check_layouts,
    "null exceptions": check_null_exceptions,
}
"""Every claim of this part by name."""

"""Conformance suite for ops: what a file of the drawer keeps, so that judge and reports can rely on it.

Third parties run it on an op of their own with `check_op("name")`, or parametrise a test over `CHECKS` to see
each claim by itself. A broken claim is an `AssertionError` that names the case.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution, DType
from kernelwright.core.ports import Op
from kernelwright.testing.op_facts import (
    SEED,
    drawn_inputs,
    errors,
    executed_cases,
    is_small,
    largest_small,
    listed_cases,
    require,
    require_outputs,
    small_public,
    torch_dtype,
    widened,
)
from kernelwright.testing.op_stage_suite import STAGE_CHECKS

if TYPE_CHECKING:
    from torch import Tensor

SAMPLES = 200
"""Hidden cases drawn."""
EXECUTED_SAMPLES = 8
"""Hidden cases also run."""
MOST_ERROR = {DType.FP32: 128.0, DType.FP16: 4.0, DType.BF16: 4.0}
"""Largest error of the reference in half-ulps of the error scale; in fp32 those of intermediates add up."""
COARSE_BITS = {DType.FP32: 11, DType.FP16: 8, DType.BF16: 4}
"""Significant bits of an answer in the next lower precision: fp16 for fp32, bf16 for fp16, fp8 for bf16."""
TELLING = (
    *(Distribution.SIGNED, Distribution.SCALED, Distribution.OFFSET, Distribution.HEAVY_TAILED),
    *(Distribution.SPARSE, Distribution.WIDE, Distribution.OUTLIERS, Distribution.SORTED),
)
"""Distributions on which a wrong answer must stand out; the others are there to break a right one."""
COMPUTE_CLASSES = ("fp32", "tf32", "fp16", "bf16")


def check_description(op: Op) -> None:
    """Require one line of summary and at least one dtype."""
    require(bool(op.SUMMARY.strip()) and "\n" not in op.SUMMARY, "SUMMARY must be one line")
    require(len(op.DTYPES) > 0 and len(set(op.DTYPES)) == len(op.DTYPES), "DTYPES must name each type once")


def check_cases(op: Op) -> None:
    """Require every case listed once and rebuildable, the public ones in all dtypes and smallest first."""
    listed = listed_cases(op)
    hashes = [case.hash for case in listed]
    for case in listed:
        require(hashes.count(case.hash) == 1, f"{case.label} {case.scalars} is listed twice")
        again = op.case(case.axes, case.dtype, case.scalars)
        require(again.hash == case.hash, f"{case.label} cannot be rebuilt from its axes, dtype and scalars")
        require(all(spec.is_contiguous for spec in (*case.inputs, *case.outputs)), f"{case.label} is strided")
    require({case.op for case in listed} == {listed[0].op}, "cases of more than one op")
    small = {case.dtype for case in small_public(op)}
    require(small == set(op.DTYPES), f"small public cases cover {small}, not all of DTYPES")
    elements = [sum(spec.numel for spec in case.inputs) for case in op.public_cases()]
    require(elements == sorted(elements), "public cases must come smallest first")


def check_identity(op: Op) -> None:
    """Require a hash that does not depend on the weight by time."""
    for case in listed_cases(op):
        heavier = case.model_copy(update={"weight": case.weight + 1})
        require(
            Case.model_validate(heavier.model_dump()).hash == case.hash,
            f"{case.label}: weight is in the hash",
        )


def check_edges(op: Op) -> None:
    """Require an edge case with an empty tensor and one with axes of extent one."""
    edges = op.edge_cases()
    empty = [case for case in edges if any(spec.numel == 0 for spec in case.inputs)]
    single = [
        case for case in edges if sum(extent == 1 for extent in case.axes.values()) * 2 >= len(case.axes)
    ]
    require(bool(empty), "no edge case has an empty input")
    require(bool(single), "no edge case has size one on at least half of its axes")


def check_work(op: Op) -> None:
    """Require the bytes of the tensors, FLOPs wherever there is an element, and a known compute class."""
    for case in listed_cases(op):
        work = op.work(case)
        require(work.bytes_read == sum(s.nbytes for s in case.inputs), f"{case.label}: bytes read")
        require(work.bytes_written == sum(s.nbytes for s in case.outputs), f"{case.label}: bytes written")
        busy = all(spec.numel for spec in (*case.inputs, *case.outputs))
        require(work.flops > 0 or not busy, f"{case.label}: no FLOPs")
        require(work.compute_class in COMPUTE_CLASSES, f"{case.label}: compute class {work.compute_class!r}")


def check_samples(op: Op) -> None:
    """Require hidden cases that are legal, small, reproducible and different, scalars included."""
    rng, again = random.Random(7), random.Random(7)
    drawn = [op.sample_case(rng) for _ in range(SAMPLES)]
    require(drawn[0].hash == op.sample_case(again).hash, "sample_case does not follow its generator")
    for case in drawn:
        require(op.case(case.axes, case.dtype, case.scalars).hash == case.hash, f"{case.label} is not legal")
        require(is_small(op, case), f"{case.label} is too big for a hidden test")
        require(sum(s.numel for s in case.outputs) <= 1 << 20, f"{case.label}: more than a million outputs")
    require(len({case.hash for case in drawn}) > SAMPLES // 2, "hidden cases repeat themselves")
    require({case.dtype for case in drawn} == set(op.DTYPES), "hidden cases leave out a dtype")
    for name in drawn[0].scalars:
        require(len({case.scalars[name] for case in drawn}) > 1, f"hidden cases never vary {name!r}")
    for number, case in enumerate(drawn[:EXECUTED_SAMPLES]):
        require_outputs(case, op.reference(op.make_inputs(case, Distribution.SIGNED, number), case.scalars))


def check_inputs(op: Op) -> None:
    """Require inputs of the declared shapes, a function of the seed, never constant, without -0.0."""
    import torch

    for case, distribution, first in drawn_inputs(op, executed_cases(op)):
        same, other = (op.make_inputs(case, distribution, seed) for seed in (SEED, SEED + 1))
        where = f"{case.label} {distribution.value}"
        require(list(first) == [spec.name for spec in case.inputs], f"{where}: names {list(first)}")
        for spec in case.inputs:
            t = first[spec.name]
            require(tuple(t.shape) == spec.shape and t.is_contiguous(), f"{where}: shape of {spec.name}")
            require(torch.equal(t, same[spec.name]), f"{where}: {spec.name} is not a function of the seed")
            if t.is_floating_point():
                require(t.dtype == torch_dtype(spec.dtype), f"{where}: {spec.name} is {t.dtype}")
                require(bool(t.isfinite().all()), f"{where}: {spec.name} is not finite")
                require(not (t.eq(0) & t.signbit()).any(), f"{where}: {spec.name} holds -0.0")
            if t.is_floating_point() and spec.numel >= 16:
                require(not torch.equal(t, other[spec.name]), f"{where}: {spec.name} ignores the seed")
                is_row = distribution is Distribution.EQUAL and spec.numel == spec.shape[-1]
                require(is_row or bool(t.min() < t.max()), f"{where}: {spec.name} is constant")


ARRANGED: dict[Distribution, Callable[["Tensor", "Tensor"], bool]] = {
    Distribution.WIDE: lambda t, _: bool(t.abs().max() > 1e3 * t.abs().min()),
    Distribution.CANCELLING: lambda t, _: bool(
        (t[..., 0:-1:2] + t[..., 1::2]).abs().mean() < 0.7 * t[..., 0:-1:2].abs().mean()
    ),
    Distribution.DENORMAL: lambda t, _: bool(0 < t.abs().max() < 2**-13),
    Distribution.ALTERNATING: lambda t, _: bool(
        (t[..., 0:-1:2].sign() != t[..., 1::2].sign()).double().mean() > 0.9
    ),
    Distribution.OUTLIERS: lambda t, signed: bool(t.abs().max() > signed.abs().max()),
    Distribution.EQUAL: lambda t, _: bool((t == t[..., :1]).all()),
    Distribution.SORTED: lambda t, _: bool((t.diff(dim=-1) >= 0).all()),
    Distribution.NEAR_MAX: lambda t, signed: bool(
        t.abs().min() > 0.8 * t.abs().max() or t.abs().max() == signed.abs().max()
    ),
}
"""What the first input must look like, beside its standard normal draw; an op may keep an input out of `near_max`."""


def check_distributions(op: Op) -> None:
    """Require of the first input that each distribution is what its name says."""
    for dtype in op.DTYPES:
        case = largest_small(op, dtype)
        drawn = {kind: op.make_inputs(case, kind, 5)[case.inputs[0].name].double() for kind in Distribution}
        signed = drawn[Distribution.SIGNED]
        require(0.3 < signed.gt(0).double().mean() < 0.7, f"{case.label}: signed has one sign")
        offset = drawn[Distribution.OFFSET]
        require(bool(offset.mean().abs() > 2 * offset.std()), f"{case.label}: offset is not offset")
        heavy = drawn[Distribution.HEAVY_TAILED]
        require(bool(heavy.abs().max() > 6 * heavy.abs().median()), f"{case.label}: heavy_tailed has no tail")
        sparse = drawn[Distribution.SPARSE].eq(0).double().mean()
        require(0.85 < sparse < 1, f"{case.label}: sparse is {sparse:.0%} zeros")
        spread = drawn[Distribution.SCALED].flatten(0, -2).square().mean(-1).sqrt()
        require(bool(spread.max() > 4 * spread.min()), f"{case.label}: rows of scaled have one scale")
        integers = drawn[Distribution.INTEGER]
        require(bool(integers.eq(integers.round()).all()), f"{case.label}: integer is not integral")
        for kind, claim in ARRANGED.items():
            require(claim(drawn[kind], signed), f"{case.label}: {kind.value} is not what it says")


def check_precision(op: Op) -> None:
    """Require a reference that tends to its float64 self, and an error scale positive where it is needed."""
    import torch

    for case, distribution, inputs in drawn_inputs(op, executed_cases(op)):
        number = torch.finfo(torch_dtype(case.dtype))
        for result, exact, scale in errors(op, case, inputs):
            where = f"{case.label} {case.scalars} {distribution.value}"
            require(
                bool((scale.isfinite() & (scale >= 0)).all()), f"{where}: error scale negative or infinite"
            )
            require(
                bool((scale[exact != 0] > 0).all()),
                f"{where}: error scale is zero beside an answer that is not",
            )
            # Below the smallest normal number spacing is absolute, so that number is the least scale.
            units = (result.double() - exact).abs() / scale.clamp_min(number.tiny) / (number.eps / 2)
            worst = float(units.max()) if units.numel() else 0.0
            require(
                worst <= MOST_ERROR[case.dtype], f"{where}: {worst:.1f} half-ulps of the scale from float64"
            )


def check_exactness(op: Op) -> None:
    """Require of an op that declares EXACT_ON_INTEGERS that integers give the float64 result to the bit."""
    import torch

    if not getattr(op, "EXACT_ON_INTEGERS", False):
        return
    for number, case in enumerate(executed_cases(op)):
        inputs = op.make_inputs(case, Distribution.INTEGER, number)
        for name, t in inputs.items():
            require(bool(t.eq(t.round()).all()), f"{case.label}: integer input {name} is not integral")
        results, exacts = op.reference(inputs, case.scalars), op.reference(widened(inputs), case.scalars)
        for result, exact in zip(results, exacts, strict=True):
            require(torch.equal(result.double(), exact), f"{case.label}: integer inputs are not exact")


def check_sensitivity(op: Op) -> None:
    """Require that every input matters: another draw of it alone changes the answer."""
    import torch

    for dtype in op.DTYPES:
        case = largest_small(op, dtype)
        inputs, others = (op.make_inputs(case, Distribution.SIGNED, seed) for seed in (21, 22))
        before = op.reference(inputs, case.scalars)
        for name in inputs:
            after = op.reference({**inputs, name: others[name]}, case.scalars)
            same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
            require(not same, f"{case.label}: the answer does not depend on {name}")


def check_null_models(op: Op) -> None:
    """Require that zeros and an answer in the next lower precision stand out of the reference's own error."""
    import torch

    for dtype in op.DTYPES:
        # Pooled over the small cases: a loss is one number, whose error may be zero by luck.
        for distribution in TELLING:
            own, zeros, coarse, faint = [], [], [], []
            for case in (case for case in small_public(op) if case.dtype is dtype):
                for seed in range(4):
                    inputs = op.make_inputs(case, distribution, 100 + seed)
                    for result, exact, scale in errors(op, case, inputs):
                        floor = scale.clamp_min(torch.finfo(result.dtype).tiny)
                        fraction, exponent = torch.frexp(exact)
                        bits = 2.0 ** COARSE_BITS[dtype]
                        rounded = torch.ldexp((fraction * bits).round() / bits, exponent)
                        own.append(((result.double() - exact) / floor).flatten())
                        zeros.append((exact / floor).flatten())
                        faint.append((exact.abs() < torch.finfo(result.dtype).tiny).flatten())
                        coarse.append(((rounded - exact) / floor).flatten())
            allowed = 1.5 * _rms(own) + 1e-12
            require(
                _rms(zeros) > 8 * allowed, f"{op.SUMMARY}: zeros pass in {dtype.value} {distribution.value}"
            )
            # Below the smallest normal number every answer is coarse: a softmax of heavy tails is one and nothing else.
            is_faint = float(torch.cat(faint).double().mean()) > 0.5
            require(
                is_faint or _rms(coarse) > allowed,
                f"{op.SUMMARY}: a coarse answer passes in {dtype.value} {distribution.value}",
            )


def _rms(parts: list["Tensor"]) -> float:
    import torch

    return float(torch.cat(parts).square().mean().sqrt())


CHECKS: dict[str, Callable[[Op], None]] = {
    "description": check_description,
    "cases": check_cases,
    "identity": check_identity,
    "edges": check_edges,
    "work": check_work,
    "samples": check_samples,
    "inputs": check_inputs,
    "distributions": check_distributions,
    "precision": check_precision,
    "exactness": check_exactness,
    "sensitivity": check_sensitivity,
    "null models": check_null_models,
    **STAGE_CHECKS,
}
"""Every claim by name."""


def load_op(name: str) -> Op:
    """Return an op of the drawer or of a third party's entry point."""
    # A module satisfies the protocol; mypy cannot see that through a module loaded by name.
    return cast(Op, plugins.load("ops", name))


def check_op(name: str) -> None:
    """Hold every claim against the op of that name."""
    op = load_op(name)
    require(all(case.op == name for case in listed_cases(op)), f"cases must name their op {name!r}")
    for check in CHECKS.values():
        check(op)

"""What the conformance suites for ops share: which cases they run, how inputs and errors are obtained."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kernelwright.core.case import Case, Distribution, DType
from kernelwright.core.ports import Op

if TYPE_CHECKING:
    from torch import Tensor, dtype

MOST_FLOPS = 300_000_000
"""Cases above this are described and counted but not executed: they belong on a GPU."""
MOST_BYTES = 32_000_000
"""The same for memory."""
SEED = 1000
"""Seed of the inputs where one draw is enough."""


def require(claim: bool, message: str) -> None:
    """Raise an `AssertionError` with the message unless the claim holds."""
    if not claim:
        raise AssertionError(message)


def torch_dtype(kind: DType) -> "dtype":
    """Return torch's name of a type an op may serve."""
    import torch

    return {DType.FP32: torch.float32, DType.FP16: torch.float16, DType.BF16: torch.bfloat16}[kind]


def listed_cases(op: Op) -> tuple[Case, ...]:
    """Return the public and the edge cases."""
    return (*op.public_cases(), *op.edge_cases())


def executed_cases(op: Op) -> list[Case]:
    """Return the listed cases a CPU runs in a moment."""
    return [case for case in listed_cases(op) if is_small(op, case)]


def is_small(op: Op, case: Case) -> bool:
    """Tell whether a CPU runs the case in a moment."""
    work = op.work(case)
    return work.flops <= MOST_FLOPS and work.bytes_moved <= MOST_BYTES


def small_public(op: Op) -> list[Case]:
    """Return the public cases a CPU runs in a moment."""
    return [case for case in op.public_cases() if is_small(op, case)]


def middle(op: Op, dtype: DType) -> Case:
    """Return a small public case that is neither the smallest nor the largest, where there are three."""
    found = [case for case in small_public(op) if case.dtype is dtype]
    return found[len(found) // 2]


def largest_small(op: Op, dtype: DType) -> Case:
    """Return the public case with the most data to look at."""
    found = [case for case in small_public(op) if case.dtype is dtype]
    return max(found, key=lambda case: case.inputs[0].numel)


def drawn_inputs(op: Op, cases: list[Case]) -> Iterator[tuple[Case, Distribution, dict[str, "Tensor"]]]:
    """Yield inputs: a middle-sized public case of each type under every distribution, the others under some in turn."""
    every = tuple(Distribution)
    whole = {middle(op, dtype).hash for dtype in op.DTYPES}
    for number, case in enumerate(cases):
        chosen = (
            every
            if case.hash in whole
            else (every[number % len(every)], every[(number * 5 + 1) % len(every)])
        )
        for distribution in chosen:
            yield case, distribution, op.make_inputs(case, distribution, SEED)


def widened(inputs: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Return the same values in float64; labels stay integers."""
    return {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}


def require_outputs(case: Case, outputs: tuple["Tensor", ...], *, wide: bool = False) -> None:
    """Require outputs of the declared number, shapes and types; of float64 if they are the wide ones."""
    import torch

    require(
        len(outputs) == len(case.outputs),
        f"{case.label}: {len(outputs)} outputs, {len(case.outputs)} declared",
    )
    for spec, output in zip(case.outputs, outputs, strict=True):
        expected = torch.float64 if wide else torch_dtype(spec.dtype)
        require(
            tuple(output.shape) == spec.shape, f"{case.label}: {spec.name} has shape {tuple(output.shape)}"
        )
        require(output.dtype == expected, f"{case.label}: {spec.name} came out as {output.dtype}")


def errors(
    op: Op, case: Case, inputs: Mapping[str, "Tensor"]
) -> Iterator[tuple["Tensor", "Tensor", "Tensor"]]:
    """Yield, per output, the reference's result, the float64 result and the scale where that is finite."""
    import torch

    wide = widened(inputs)
    results, exacts = op.reference(inputs, case.scalars), op.reference(wide, case.scalars)
    require_outputs(case, results)
    require_outputs(case, exacts, wide=True)
    for result, exact, scale in zip(results, exacts, op.error_scale(wide, case.scalars), strict=True):
        require(scale.shape == exact.shape, f"{case.label}: error scale of shape {tuple(scale.shape)}")
        require(scale.dtype == torch.float64, f"{case.label}: error scale in {scale.dtype}")
        require(
            torch.equal(result.isfinite(), exact.isfinite()), f"{case.label}: finite in one precision only"
        )
        finite = exact.isfinite()
        yield result[finite], exact[finite], scale[finite]

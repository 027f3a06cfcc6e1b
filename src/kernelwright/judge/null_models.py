"""Null models: answers that are none. A case that lets one pass proves nothing, a problem that does cannot be judged.

What applies to which op is the op's own business: everything does, but for the exceptions its file names.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from kernelwright.core.case import Compute
from kernelwright.core.verdict import NullModel
from kernelwright.judge.error_budget import Depth
from kernelwright.judge.oracle import Answer

COARSE_BITS = {torch.float32: 11, torch.float16: 8, torch.bfloat16: 4}
"""Significant bits of the next lower precision: fp16 or tf32 for fp32, bf16 for fp16, fp8 for bf16."""
BELOW_TF32 = 8
TILE = 64


class Evidence(NamedTuple):
    """What a null model may know of a call."""

    inputs: Mapping[str, torch.Tensor]
    answers: list[Answer]
    """To these inputs."""
    others: list[Answer]
    """To other inputs of the same case."""
    dropped: list[Answer]
    """To these inputs without half of an axis."""
    compute: Compute


def without_terms(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the inputs with the second half of the last axis of the first one zero, of those that have an axis."""
    for name, tensor in inputs.items():
        if tensor.is_floating_point() and tensor.ndim and tensor.numel():
            cut = tensor.clone()
            cut[..., cut.shape[-1] // 2 :] = 0
            return {**inputs, name: cut}
    return dict(inputs)


def kills(model: NullModel, evidence: Evidence, depth: Depth | None) -> bool | None:
    """Tell whether the error budget refuses the model's answer; None if it has none to this case."""
    verdicts = []
    for place, answer in enumerate(evidence.answers):
        values = answer_of(model, evidence, place)
        if values is not None and values.numel():
            verdicts.append(answer.judged(values, depth).passed)
    return not all(verdicts) if verdicts else None


def answer_of(model: NullModel, evidence: Evidence, place: int) -> torch.Tensor | None:
    """Return what the model writes into one output, or None if it has nothing to write there."""
    right, other = evidence.answers[place], evidence.others[place]
    kind = right.framework.dtype
    match model:
        case NullModel.ZEROS:
            return torch.zeros_like(right.framework)
        case NullModel.CONSTANT:
            known = other.exact[torch.isfinite(other.exact)]
            return torch.full_like(right.framework, float(known.mean()) if known.numel() else 0.0)
        case NullModel.PASSED_THROUGH:
            fitting = [
                t for t in evidence.inputs.values() if t.shape == right.exact.shape and t.dtype == kind
            ]
            return fitting[0].to(right.exact.device) if fitting else None
        case NullModel.PREVIOUS:
            return other.exact.to(kind)
        case NullModel.PERMUTED_ROWS:
            return _permuted(right.exact).to(kind) if right.exact.ndim and right.exact.numel() > 1 else None
        case NullModel.DROPPED_TILE:
            return _without_tile(right.exact).to(kind) if right.exact.ndim else None
        case NullModel.DROPPED_TERMS:
            return evidence.dropped[place].exact.to(kind)
        case NullModel.LOWER_PRECISION:
            bits = BELOW_TF32 if evidence.compute is Compute.TF32_OK else COARSE_BITS[kind]
            return coarse(right.exact, bits).to(kind)


def _permuted(exact: torch.Tensor) -> torch.Tensor:
    """Return the rows moved by one; a single row is turned by one element."""
    rows = exact.reshape(-1, exact.shape[-1]) if exact.ndim > 1 else exact.reshape(-1, 1)
    return (rows.roll(1, 0) if rows.shape[0] > 1 else rows.roll(1, 1)).reshape(exact.shape)


def _without_tile(exact: torch.Tensor) -> torch.Tensor:
    """Return the answer with the end of its last row zero."""
    cut = exact.clone().reshape(-1)
    last = exact.shape[-1] if exact.ndim > 1 else -(-cut.numel() // 8)
    cut[max(0, cut.numel() - min(TILE, last)) :] = 0
    return cut.reshape(exact.shape)


def coarse(exact: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the answer rounded to so many significant bits."""
    fraction, exponent = torch.frexp(exact)
    rounded = torch.ldexp((fraction * 2.0**bits).round() / 2.0**bits, exponent)
    return torch.where(torch.isfinite(exact), rounded, exact)

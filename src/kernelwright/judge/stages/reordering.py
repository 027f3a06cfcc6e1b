"""The determinism class of a candidate: bitwise unless its source says `REORDER = True` where it says `PARAMS`."""

import ast
from collections.abc import Sequence

import torch

from kernelwright.core.plan_language import PlanFault, python_part
from kernelwright.judge.arena import Arena
from kernelwright.judge.error_budget import check_spread
from kernelwright.judge.oracle import Answer


def declares_reordering(source: str) -> bool:
    """Tell whether a source declares that its sums are taken in no fixed order (atomics), so that last bits may differ.

    A literal in the file, not a parameter: it is a promise to the user, and no tuner may switch it.
    """
    if "REORDER" not in source:
        return False
    try:
        module = ast.parse(python_part(source))
    except (PlanFault, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(
        isinstance(node, ast.Assign)
        and [getattr(target, "id", None) for target in node.targets] == ["REORDER"]
        and isinstance(node.value, ast.Constant)
        and node.value.value is True
        for node in module.body
    )


def apart(arena: Arena, number: int, bits: torch.Tensor, answers: Sequence[Answer] | None) -> str | None:
    """Return how a call's outputs differ from bits seen before, or None if they do not.

    With the right answers given, differences up to what rule 1 of the error budget allows an error are none.
    """
    found = arena.output_bytes(number)
    if torch.equal(found, bits):
        return None
    if answers is None:
        return f"{int((found != bits).sum())} of {bits.numel()} output bytes differ"
    start = 0
    for spec, answer in zip(arena.cases[arena.calls[number].case].outputs, answers, strict=True):
        values = arena.view(number, spec)
        raw = bits[start : start + spec.nbytes]
        start += spec.nbytes
        before = raw.clone().view(values.dtype).reshape(spec.shape)
        where = answer.exact.device
        verdict = check_spread(before.to(where), values.to(where), *answer)
        if not verdict.passed:
            return verdict.reason
    return None

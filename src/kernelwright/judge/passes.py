"""One pass of timed calls: which of them are made, in which order, and what is looked at behind it."""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from kernelwright.core.case import Case, TensorSpec
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import BITS, Arena
from kernelwright.judge.error_budget import PASSED, Verdict
from kernelwright.judge.fresh import Hard
from kernelwright.judge.oracle import Answer
from kernelwright.judge.stages import Bench, Failure
from kernelwright.judge.stages.checks import answers_to, check_answers, drawn

SPARED = 4
"""One call in so many is never made in a pass, and its inputs cannot be read."""
SAMPLES = 64
"""Random elements of every timed call that are looked at: who saves a share of the time leaves about that share of all
elements out, and a heat looks at tens of thousands."""
ALONE_CALLS = 4
"""Random calls that are checked where there is nobody to differ from."""


class Pass(NamedTuple):
    """The calls that are made, in this order, those that are not, and the one that has hard inputs."""

    made: tuple[int, ...]
    spared: tuple[int, ...]
    hard: Hard | None = None


def spared_of(size: int) -> int:
    """Return how many of so many calls are not made in a pass."""
    return max(1, size // SPARED)


def dealt(size: int, spared: int, rng: random.Random) -> Pass:
    """Draw which calls are made, in which order, and which so many are not."""
    lots = tuple(rng.sample(range(size), size))
    return Pass(lots[spared:], lots[:spared])


class Answered(NamedTuple):
    """An arm that has answered the calls of a pass."""

    place: int
    arena: Arena
    bench: Bench | None
    """None for a trusted arm: what it answered is only compared with."""


def wrongly_written(arena: Arena, now: Pass, case: Case) -> Failure | None:
    """Tell of calls that were made and left nothing, or were not and did."""
    looked, left = arena.sampled(now.made, SAMPLES)
    if left:
        reason = f"{left} of {looked} random output elements never written in timed calls"
        return Failure(Status.NOT_WRITTEN, reason, case)
    looked, left = arena.sampled(now.spared, SAMPLES) if now.spared else (0, 0)
    if left < looked:
        reason = (
            f"outputs of calls that were never made were written: {looked - left} of {looked} random elements"
        )
        return Failure(Status.STATEFUL, reason, case)
    return None


def wrongly_answered(
    arms: Sequence[Answered], now: Pass, case: Case, rng: random.Random, *, few: bool
) -> tuple[int, Failure] | None:
    """Check the call with hard inputs against float64, the one arms disagree on most, and random ones; `few` of them.

    All arms were given the same inputs: one answer of the reference judges all of them.
    """
    judged = [(arm.place, arm.arena, arm.bench) for arm in arms if arm.bench is not None]
    if now.hard is None or not judged:
        return None
    chosen = {now.hard.call}
    if len(arms) > 1:
        elements = [partial(arm.arena.elements, calls=now.made) for arm in arms]
        generator, hard = arms[0].arena.generator, now.made.index(now.hard.call)
        chosen.add(now.made[most_apart(elements, case.outputs, len(now.made), generator, hard)])
    if len(arms) == 1 or not few:
        count = 1 if few or len(arms) > 1 else min(ALONE_CALLS, len(now.made))
        chosen |= set(rng.sample(now.made, count))
    for number in chosen:
        _, first, bench = judged[0]
        answers, known = answers_to(bench, first, number), None
        for place, arena, bench in judged:
            # Of a large output a comparison takes a hundred times as long as finding that it is one that passed.
            is_known = known is not None and is_same(arena, known, number, case)
            check = _passed if is_known else None
            failure = check_answers(bench, arena, number, answers, check=check)
            if failure is None:
                known = known or arena
            elif number == now.hard.call:
                # A narrow miss on a hard draw is looked at again, as it is where those are tried.
                again = drawn(bench, case, now.hard.kind)
                failure = check_answers(bench, arena, number, answers, again=again)
            if failure:
                return place, failure
    return None


def is_same(arena: Arena, other: Arena, number: int, case: Case) -> bool:
    """Tell whether two arenas hold the same outputs of a call, to the bit."""
    return all(
        torch.equal(*(one.view(number, spec, dtype=BITS[spec.dtype][0]) for one in (arena, other)))
        for spec in case.outputs
        if spec.numel
    )


def _passed(values: torch.Tensor, answer: Answer) -> Verdict:
    del values, answer
    return PASSED


Elements = Callable[[TensorSpec, torch.Tensor], torch.Tensor]
"""Elements of an output of all calls of an arm: a row of places per call."""


def most_apart(
    arms: Sequence[Elements],
    outputs: Sequence[TensorSpec],
    calls: int,
    generator: torch.Generator,
    hard: int | None = None,
) -> int:
    """Return the call on which arms disagree most, by random elements of its outputs; all were given the same inputs.

    The call with hard inputs is looked at anyway: there, right answers lie further apart than anywhere else.

    Who leaves the work out in one call of fifty would mostly escape a look at one call of hundreds.
    """
    where = generator.device
    dense = [spec for spec in outputs if spec.numel and spec.is_contiguous]
    if not dense:
        return int(torch.randint(calls, (1,), generator=generator, device=where))
    apart = torch.zeros(calls, dtype=torch.float64, device=where)
    for spec in dense:
        places = torch.randint(spec.numel, (calls, SAMPLES), generator=generator, device=where)
        first, *others = (elements(spec, places).double() for elements in arms)
        unit = (
            first[first.isfinite()].abs().nanmedian().nan_to_num().clamp_min(torch.finfo(torch.float64).tiny)
        )
        for other in others:
            far = torch.nan_to_num((other - first).abs() / unit, nan=math.inf)
            # Both infinite or both NaN is agreement: inf - inf would name the first call that holds one, always.
            far[(other == first) | (other.isnan() & first.isnan())] = 0.0
            apart = torch.maximum(apart, far.amax(1))
    if hard is not None:
        apart[hard] = -1.0
    return int(apart.argmax())

"""One output against its answer: by the error budget, large ones part by part.

Of 17 million elements every step of the budget moves more than any cache holds, and took a second in all: three
quarters of a race of heavy kernels. In parts that fit, a fifth of it. What the budget asks of the framework's own
errors is measured once for all outputs that are held against one answer. This way only says that an output passes;
whatever does not is judged by the budget itself, which has the words for it.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from kernelwright.judge.error_budget import (
    BIAS_ERRORS,
    BIAS_FACTOR,
    BIAS_ROWS,
    BIAS_SLACK,
    FP32,
    HARDWARE,
    MAX_FACTOR,
    MAX_SLACK,
    PASSED,
    RMS_FACTOR,
    RMS_SLACK,
    TAIL,
    TAIL_FACTOR,
    TAIL_SAMPLE,
    TAIL_SLACK,
    Depth,
    Verdict,
    check_whole,
    hard_bound,
    hard_least,
    tail,
    unit_roundoff,
)

LARGE = 1 << 20
"""Elements from which several threads, and parts, are worth it."""
PART, DEVICE_PART = 1 << 17, 1 << 26
"""Elements of a part: with its intermediates in float64 it stays in a core's cache; on a GPU it bounds their memory."""


class _Theirs(NamedTuple):
    """What the framework's own errors, and rounding alone, allow: in units of the elements' scale."""

    rms: float
    largest: float
    tail: float
    mean: float
    outward: float
    """Mean error in the direction of the numbers."""
    rounding: float
    """The mean of what rounding alone may cost."""


class _Part(NamedTuple):
    """Some rows of an answer."""

    exact: torch.Tensor
    unit: torch.Tensor
    framework: torch.Tensor

    def errors(self, values: torch.Tensor) -> torch.Tensor:
        """Return signed errors of values in units of their scale."""
        return (values.double() - self.exact).div_(self.unit).float()

    def resolved(self, tiny: float) -> torch.Tensor:
        """Return the magnitude of the answer, at least the smallest normal number, in the same units."""
        return self.exact.abs().clamp_min_(tiny).div_(self.unit).float()


@dataclass(frozen=True)
class Measured:
    """An answer and what it allows, measured when it is first asked for."""

    exact: torch.Tensor
    framework: torch.Tensor
    scale: torch.Tensor

    @property
    def rows(self) -> int:
        """Return how many rows there are; of a vector every element is one."""
        return self.exact.shape[:-1].numel() if self.exact.ndim > 1 else self.exact.numel()

    def parts(self, *others: torch.Tensor) -> Iterator[tuple[_Part, tuple[torch.Tensor, ...]]]:
        """Yield whole rows of the answer, and the same of other tensors."""
        tiny = torch.finfo(self.framework.dtype).tiny
        shape = (self.rows, -1)
        own = [one.reshape(shape) for one in (self.exact, self.scale, self.framework)]
        beside = [one.reshape(shape) for one in others]
        step = max(1, (DEVICE_PART if self.exact.is_cuda else PART) * self.rows // self.exact.numel())
        for start in range(0, self.rows, step):
            exact, scale, framework, *rest = (one[start : start + step] for one in (*own, *beside))
            yield _Part(exact, scale.clamp_min(tiny), framework), tuple(rest)

    @cached_property
    def theirs(self) -> _Theirs | None:
        """Return what the framework's errors allow; None where not every number is finite."""
        number, count = torch.finfo(self.framework.dtype), self.exact.numel()
        roundoff, every = unit_roundoff(self.framework.dtype), count // TAIL_SAMPLE | 1
        squares = [0.0, 0.0]
        largest = [0.0, 0.0]
        sums = [0.0, 0.0, 0.0]
        samples: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        seen = 0
        for part, _ in self.parts():
            errors = part.errors(part.framework)
            rounding = part.resolved(number.tiny).mul_(roundoff).add_(FP32)
            if not float(part.exact.abs().max()) <= number.max or not math.isfinite(float(part.unit.sum())):
                return None
            for place, values in enumerate((errors, rounding)):
                norm, values = float(torch.linalg.vector_norm(values)), values.abs()
                if not math.isfinite(norm):
                    return None
                squares[place] += norm * norm
                largest[place] = max(largest[place], float(values.max()))
                samples[place].append(values.reshape(-1)[-seen % every :: every].clone())
            sums[0] += float(errors.sum(dtype=torch.float64))
            sums[1] += float((errors * part.exact.sign()).sum(dtype=torch.float64))
            sums[2] += float(rounding.sum(dtype=torch.float64))
            seen += errors.numel()
        rms, coarse = (math.sqrt(one / count) for one in squares)
        tails = [tail(torch.cat(one)) for one in samples]
        free = HARDWARE * FP32
        return _Theirs(
            rms=RMS_FACTOR * rms + RMS_SLACK * coarse + free,
            largest=MAX_FACTOR * largest[0] + MAX_SLACK * largest[1] + free,
            tail=TAIL_FACTOR * tails[0] + TAIL_SLACK * tails[1] + free,
            mean=BIAS_FACTOR * abs(sums[0] / count),
            outward=BIAS_FACTOR * abs(sums[1] / count),
            rounding=sums[2] / count,
        )

    def passes(self, values: torch.Tensor, depth: Depth | None) -> Verdict | None:
        """Return that an output is within budget; None if it is not, or if that cannot be told in parts."""
        if (values.shape, values.dtype) != (self.framework.shape, self.framework.dtype):
            return None
        theirs, count, number = self.theirs, values.numel(), torch.finfo(values.dtype)
        if theirs is None:
            return None
        has_rows = self.rows >= BIAS_ROWS
        square = largest = 0.0
        beyond = 0
        means: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for part, (mine,) in self.parts(values):
            own = part.errors(mine)
            square += float(torch.linalg.vector_norm(own)) ** 2
            size = own.abs()
            top = float(size.max())
            if not math.isfinite(square) or not top <= theirs.largest:
                return None
            largest = max(largest, top)
            beyond += int(torch.count_nonzero(size > theirs.tail)) if top > theirs.tail else 0
            if depth is not None and top > hard_least(depth):
                bound = hard_bound(part.resolved(number.tiny), part.errors(part.framework), depth, number)
                if bool((size > bound).any()):
                    return None
            if has_rows:
                means[0].append(own.mean(-1))
                means[1].append(own.mul_(part.exact.sign()).mean(-1))
        ratios = [math.sqrt(square / count) / theirs.rms, largest / theirs.largest]
        for rows, allowed in zip(means if has_rows else (), (theirs.mean, theirs.outward), strict=False):
            found = torch.cat(rows)
            standard = BIAS_ERRORS * float(found.std()) / math.sqrt(self.rows)
            ratios.append(abs(float(found.mean())) / max(standard, allowed, BIAS_SLACK * theirs.rounding))
        is_within = beyond <= count - int(TAIL * count) and all(ratio <= 1 for ratio in ratios)
        return Verdict(True, "", max(ratios)) if is_within else None


def check_output(
    values: torch.Tensor,
    exact: torch.Tensor,
    framework: torch.Tensor,
    scale: torch.Tensor,
    depth: Depth | None = None,
    measured: Measured | None = None,
) -> Verdict:
    """Judge one output: the candidate's values against float64 and the framework's own.

    `measured` is the same answer where several outputs are held against it.
    """
    if values.numel() == 0:
        return PASSED
    if values.numel() < LARGE:
        return check_whole(values, exact, framework, scale, depth)
    with _all_cores(values):
        found = (measured or Measured(exact, framework, scale)).passes(values, depth)
        return found or check_whole(values, exact, framework, scale, depth)


@contextmanager
def _all_cores(values: torch.Tensor) -> Iterator[None]:
    """Let a large output be checked by all cores; small ones take longer on two threads than on one."""
    if values.is_cuda:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        yield
    finally:
        torch.set_num_threads(before)

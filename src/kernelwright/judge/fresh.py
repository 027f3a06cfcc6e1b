"""Inputs for timed calls that nobody can know again, and the call whose answers want a look.

A draw that is only scaled is known again by a few elements, and the answer of a linear op with it: a product that
remembered eight answers passed for six times as fast. So every input of every call is a mixture of two draws, each
turned by a random offset, and every element has a share of its own. With one share for all, the four draws came out of
the warm-up's mixtures by correlation, and sums were answered from prefix sums. A mixture stays in the range of its
parts: what must be positive is.

One call of the pass that is looked at is given a hard draw instead, and nobody knows which: a softmax that left its
maximum out from its 121st call on was right on every mixture, and passed `ship`.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution, TensorSpec
from kernelwright.judge.arena import once

BASES = 4
"""Draws of every input."""
LEAST_SHARE = 0.15
"""Of the smaller part of a mixture."""
SAMPLES = 64
"""Random elements of every timed call that are looked at: who saves a share of the time leaves about that share of all
elements out, and a heat looks at tens of thousands."""
SPARED = 4
"""One call in so many is never made in a pass, and its inputs cannot be read."""
HARD = (Distribution.OFFSET, Distribution.WIDE, Distribution.HEAVY_TAILED, Distribution.OUTLIERS)
"""Hard for the arithmetic, and no harder for the hardware: on denormals a CPU is many times as slow."""


class Hard(NamedTuple):
    """The call of a pass that has hard inputs, and of what kind."""

    call: int
    kind: Distribution


class Pass(NamedTuple):
    """The calls that are made, in this order, those that are not, and the one that has hard inputs."""

    made: tuple[int, ...]
    spared: tuple[int, ...]
    hard: Hard | None = None


def dealt(size: int, spared: int, rng: random.Random) -> Pass:
    """Draw which calls are made, in which order, and how many are not."""
    lots = tuple(rng.sample(range(size), size))
    return Pass(lots[spared:], lots[:spared])


class Mixtures:
    """The draws of a case's inputs, and what is mixed from them."""

    def __init__(self, case: Case, where: str, rng: random.Random) -> None:
        op, self.rng = plugins.load("ops", case.op), rng
        self.op, self.case, self.where = op, case, where
        with torch.device(where):  # hundreds of millions of elements take seconds on the host
            drawn = [op.make_inputs(case, Distribution.SIGNED, rng.getrandbits(62)) for _ in range(BASES)]
        # Stored twice over: turned by any offset, a draw is a view.
        self.bases = {
            spec.name: [once(base[spec.name].to(where), spec).reshape(-1).repeat(2) for base in drawn]
            for spec in case.inputs
        }
        generator = torch.Generator(where).manual_seed(rng.getrandbits(62))
        self.shares = {
            name: torch.empty_like(bases[0]).uniform_(LEAST_SHARE, 1 - LEAST_SHARE, generator=generator)
            for name, bases in self.bases.items()
            if bases[0].is_floating_point()
        }

    def fill(self, name: str, target: torch.Tensor) -> None:
        """Write what nobody has seen into an input: of floats a mixture, of integers one draw."""
        first, second = (self._turned(base, target) for base in self.rng.sample(self.bases[name], 2))
        if target.is_floating_point():
            torch.lerp(first, second, self._turned(self.shares[name], target), out=target)
        else:
            target.copy_(first)

    def harden(self, calls: Sequence[Mapping[str, torch.Tensor]], made: Sequence[int]) -> Hard:
        """Give one of the calls that are made a hard draw; inputs go by name."""
        number, kind = self.rng.choice(made), self.rng.choice(HARD)
        with torch.device(self.where):
            drawn = self.op.make_inputs(self.case, kind, self.rng.getrandbits(62))
        for spec in self.case.inputs:
            calls[number][spec.name].copy_(once(drawn[spec.name], spec))
        return Hard(number, kind)

    def _turned(self, base: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        start = self.rng.randrange(max(1, target.numel()))
        return base[start : start + target.numel()].view(target.shape)


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

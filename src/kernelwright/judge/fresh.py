"""Inputs for timed calls that nobody can know again, and the call whose answers want a look.

A draw that is only scaled is known again by a few elements, and the answer of a linear op with it: a product that
remembered eight answers passed for six times as fast. So every input of every call is a mixture of two draws, each
turned by a random offset, and every element has a share of its own. With one share for all, the four draws came out of
the warm-up's mixtures by correlation, and sums were answered from prefix sums. A mixture stays in the range of its
parts: what must be positive is. What is never near zero, such as weights, is mixed by magnitude: a bias of almost zero
left nothing but the rounding of the mean in some elements of a layernorm, and honest ones were refused.

One call of every pass is given a hard draw instead, and nobody knows which: a softmax that left its maximum out from
its 121st call on was right on every mixture, and passed `ship`. In every pass, because one pass of a heat is looked at:
what only that one had would tell which it is.
"""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution
from kernelwright.judge.arena import once

BASES = 4
"""Draws of every input."""
LEAST_SHARE = 0.15
"""Of the smaller part of a mixture."""
NEAR, LOOKED_AT = 0.1, 4096
"""Share of its usual magnitude that makes a value near zero, and how many values tell whether any is."""
HARD = (Distribution.OFFSET, Distribution.WIDE, Distribution.HEAVY_TAILED, Distribution.OUTLIERS)
"""Hard for the arithmetic, and no harder for the hardware: on denormals a CPU is many times as slow."""


class Hard(NamedTuple):
    """The call of a pass that has hard inputs, and of what kind."""

    call: int
    kind: Distribution


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
        self.draw_hard()
        generator = torch.Generator(where).manual_seed(rng.getrandbits(62))
        self.shares = {
            name: torch.empty_like(bases[0]).uniform_(LEAST_SHARE, 1 - LEAST_SHARE, generator=generator)
            for name, bases in self.bases.items()
            if bases[0].is_floating_point()
        }

        self.far_from_zero = {name for name in self.shares if _is_far_from_zero(self.bases[name][0])}

    def fill(self, name: str, target: torch.Tensor) -> None:
        """Write what nobody has seen into an input: of floats a mixture, of integers one draw."""
        first, second, third = self.rng.sample(self.bases[name], 3)
        if name not in self.shares:
            target.copy_(self._turned(first, target))
            return
        share, parts = self._turned(self.shares[name], target), (first, second)
        if name in self.far_from_zero:
            ends = [self._turned(part, target).abs() for part in parts]
            torch.lerp(*ends, share, out=target).copysign_(self._turned(third, target))
        else:
            torch.lerp(*(self._turned(part, target) for part in parts), share, out=target)

    def fill_all(self, calls: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Fill the inputs of all calls, which go by name."""
        # Where a default device is set, torch asks about it at every operation, which takes as long as all else here.
        with torch._C.DisableTorchFunction():
            for call in calls:
                for name, tensor in call.items():
                    self.fill(name, tensor)

    def draw_hard(self) -> None:
        """Draw what is hard for the passes of a heat."""
        self.kind = self.rng.choice(HARD)
        with torch.device(self.where):
            drawn = self.op.make_inputs(self.case, self.kind, self.rng.getrandbits(62))
        self.hard = {
            spec.name: once(drawn[spec.name].to(self.where), spec).reshape(-1).repeat(2)
            for spec in self.case.inputs
        }

    def harden(self, calls: Sequence[Mapping[str, torch.Tensor]], made: Sequence[int]) -> Hard:
        """Give one of the calls that are made what is hard, turned anew; inputs go by name."""
        number = self.rng.choice(made)
        for name, target in calls[number].items():
            target.copy_(self._turned(self.hard[name], target))
        return Hard(number, self.kind)

    def _turned(self, base: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        count = target.numel()
        return base.narrow(0, int(self.rng.random() * count), count).view(target.shape)


def _is_far_from_zero(values: torch.Tensor) -> bool:
    """Tell whether none of the first values is near zero."""
    magnitudes = values[:LOOKED_AT].float().abs()
    return magnitudes.numel() > 0 and bool(magnitudes.min() > NEAR * magnitudes.mean())

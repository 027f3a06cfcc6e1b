"""What every stage works on: the bench, the sizes it may take, and how a failure is told."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Case, DType, Layout
from kernelwright.core.device import DeviceKind
from kernelwright.core.ports import Op
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Status
from kernelwright.hardware.lock import DeviceLock
from kernelwright.judge.arena import Arena
from kernelwright.judge.builds import Builds
from kernelwright.judge.children import Service
from kernelwright.judge.execution import is_interpreted, launches_plans, left_out
from kernelwright.judge.runners import Keeper
from kernelwright.judge.stages.layouts import LaidOut, laid_out, outputs_moved

Item = TypeVar("Item")
CALL_SECONDS = 20.0
SMOKE_ELEMENTS = 1 << 16
"""Cases up to this many input elements count as small."""
PROBED_ELEMENTS = {True: 1 << 18, False: 1 << 24}
"""A case of the problem's own up to this size, on a CPU or not, is probed many times; else a smaller one stands in."""
SWEEP_ELEMENTS = {True: 1 << 22, False: 1 << 30}
"""Board-sized public cases beyond this are left to GPUs: float64 on them takes a CPU minutes."""
HEAVY_ELEMENTS = 1 << 20
"""A case whose sizes are fixed and larger than this takes a CPU seconds to answer in float64."""
BASELINES = ("eager", "compiled")
"""Backends whose functions the launcher captures itself."""
POOL = 24
"""Hidden cases drawn at once; `keep` asks for about twenty."""
DRAWS = 50
"""Hidden cases drawn in search of one that is small enough."""


@dataclass(frozen=True)
class Bench:
    """Everything a stage needs."""

    problem: Problem
    candidate: Candidate
    builds: Builds
    nursery: Service
    reference: Service
    home: Path
    lock: DeviceLock
    """Held alone while something is timed, shared while answers are checked."""
    rng: random.Random
    """Seeded from the operating system for every evaluation: hidden shapes and inputs cannot be foreseen."""
    hidden_shapes: int
    progress: Callable[[str], None]
    guards_off: bool = False
    """Tests only: let what the static guards would refuse run, to see that it fails there too."""
    audit_off: bool = False
    """Tests only: let machine code run that the audit would refuse."""
    testability: dict[str, str | None] = field(default_factory=dict)
    """What is known of problems, by hash: the null model that survives, or None. Outlives the bench."""
    keeper: Keeper | None = None
    """Where the launcher of a plan stays between the stages that check answers; None for a fresh one in each."""

    @cached_property
    def op(self) -> Op:
        """Return the problem's op; looking it up reads the metadata of every installed package."""
        return cast(Op, plugins.load("ops", self.problem.op))

    @cached_property
    def is_planned(self) -> bool:
        """Tell whether the trusted launcher runs the candidate."""
        return launches_plans(self.candidate, self.problem.device)

    @property
    def is_launched(self) -> bool:
        """Tell whether the trusted launcher can time it: a plan, or a baseline shipped with the package."""
        baseline = self.candidate.origin is Origin.BASELINE and self.candidate.backend in BASELINES
        return self.is_planned or (baseline and not self.is_cpu)

    @cached_property
    def is_interpreted(self) -> bool:
        """Tell whether an interpreter stands in for the GPU the candidate needs."""
        return is_interpreted(self.candidate, self.problem.device)

    @property
    def has_fixed_cases(self) -> bool:
        """Tell whether sizes and layouts other than the problem's own are no part of the contract."""
        return hasattr(self.op, "FIXED_CASES")

    @cached_property
    def is_heavy(self) -> bool:
        """Tell whether no small case can stand in for the problem's own, and every answer to it takes seconds."""
        own = min(map(input_elements, self.problem.cases))
        return self.is_cpu and self.has_fixed_cases and own > HEAVY_ELEMENTS

    def some(self, trials: Sequence[Item], most: int) -> list[Item]:
        """Return all trials or, where each takes seconds, so many of them: others in every evaluation."""
        return list(trials) if not self.is_heavy else self.rng.sample(trials, min(most, len(trials)))

    @property
    def is_cpu(self) -> bool:
        """Tell whether the problem is about a CPU."""
        return self.problem.device.kind is DeviceKind.CPU

    @property
    def where(self) -> str:
        """Return torch's name of the device the problem is about."""
        return "cpu" if self.is_cpu else f"cuda:{self.problem.device.index}"

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Return the types a candidate must serve: those of the op, when the reference is the op's own.

        A baseline is there to be beaten: that the framework is weak in other types is no reason to refuse it.
        """
        if self.problem.reference is None and self.candidate.origin is not Origin.BASELINE:
            return tuple(self.op.DTYPES)
        return tuple(dict.fromkeys(case.dtype for case in self.problem.cases))

    @property
    def seed(self) -> int:
        """Return a seed nobody has seen."""
        return self.rng.getrandbits(62)

    def arena(
        self, cases: Sequence[Case], call_cases: Sequence[int], shared: Sequence[Mapping[str, str]] = ()
    ) -> Arena:
        """Return buffers for calls, in the memory of the device the problem is about."""
        if self.is_cpu:
            return Arena(cases, call_cases, self.rng, shared)
        from kernelwright.judge.device_arena import DeviceArena

        return DeviceArena(cases, call_cases, self.rng, shared, self.problem.device.index)

    def small_cases(self) -> list[Case]:
        """Return the small public cases in the types that are served; the problem's smallest where there are none."""
        found = [
            case
            for case in self.op.public_cases()
            if input_elements(case) <= SMOKE_ELEMENTS and case.dtype in self.dtypes
        ]
        return found or [min(self.problem.cases, key=input_elements)]

    def known_cases(self) -> list[Case]:
        """Return every case that is put to every candidate, but for those drawn at random; the smallest first."""
        known = [*self.op.public_cases(), *self.op.edge_cases()]
        known += [case for kind in self.dtypes for case in self.op.growth_cases(kind)]
        most = SWEEP_ELEMENTS[self.is_cpu]
        wanted = [case for case in known if case.dtype in self.dtypes and input_elements(case) <= most]
        return sorted(wanted, key=input_elements)

    @cached_property
    def pool(self) -> list[Case]:
        """Return hidden cases drawn at once, so that they can be compiled ahead; each is used once."""
        return [] if self.has_fixed_cases else [self.op.sample_case(self.rng) for _ in range(POOL)]

    @cached_property
    def layouts(self) -> list[LaidOut]:
        """Return the problem's case and a hidden one in every layout, drawn at once, likewise."""
        if self.has_fixed_cases:
            return []
        cases = (self.probed_case(), self.hidden_case(SMOKE_ELEMENTS))
        found = [way for case in cases for way in laid_out(case, self.rng)]
        own = min(self.problem.cases, key=input_elements)
        if own not in cases and input_elements(own) <= SWEEP_ELEMENTS[self.is_cpu]:
            # A big one in some of them, the required strides and odd outputs always: a kernel may have a way of its own
            # for that size.
            ways = list(laid_out(own, self.rng))
            found += [way for way in ways if way.kind is Layout.ROW_STRIDED]
            found.append(outputs_moved(own, self.rng))
            found += self.rng.sample(ways, 2)
        return found

    def hidden_case(self, most: int) -> Case:
        """Return a random legal case of at most so many elements, or the smallest of many drawn."""
        if self.has_fixed_cases:
            return min(self.problem.cases, key=input_elements)
        drawn = []
        for _ in range(DRAWS):
            case = self._pooled(most) or self.op.sample_case(self.rng)
            if case.dtype in self.dtypes and not self.is_left_out(case):
                if input_elements(case) <= most:
                    return case
                drawn.append(case)
        return min(drawn or self.small_cases(), key=input_elements)

    def _pooled(self, most: int) -> Case | None:
        """Take the first case of the pool that is small enough; what is not planned compiles nothing ahead."""
        fits = (case for case in self.pool if input_elements(case) <= most) if self.is_planned else iter(())
        case = next(fits, None)
        if case is not None:
            self.pool.remove(case)
        return case

    def probed_case(self) -> Case:
        """Return the problem's smallest case, or a hidden one where that is too big to be run many times."""
        own = min(self.problem.cases, key=input_elements)
        most = PROBED_ELEMENTS[self.is_cpu]
        return own if input_elements(own) <= most and not self.is_left_out(own) else self.hidden_case(most)

    def is_left_out(self, case: Case) -> bool:
        """Tell whether the case cannot be put to this candidate here."""
        return self.is_interpreted and left_out(self.candidate, case, self.problem.device) is not None

    def build_key(self, case: Case) -> str:
        """Return what tells artefacts apart: calls of one process share one."""
        return (
            "" if self.is_planned else self.builds.key(self.candidate, self.candidate.values_for(case.hash))
        )


@dataclass(frozen=True)
class Failure:
    """Why a stage failed."""

    status: Status
    reason: str
    case: Case | None = None


Found = tuple[int, Failure | None]
"""How many calls or facts were checked, and the failure if there was one."""


@dataclass(frozen=True)
class Skipped:
    """Why a stage passed without checking what it is there for."""

    reason: str


Told = tuple[int, Failure | Skipped | None]
"""The same of a stage that does not apply everywhere."""


def of_each_kind(cases: Sequence[Case]) -> list[Case]:
    """Return the smallest case of every dtype and scalars."""
    ordered = sorted(cases, key=input_elements, reverse=True)
    return list({(case.dtype, *case.scalars.items()): case for case in ordered}.values())


def input_elements(case: Case) -> int:
    """Return how many elements the inputs of a case have."""
    return sum(spec.numel for spec in case.inputs)

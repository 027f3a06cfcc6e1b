"""The heat of a look: values of one source beside each other, once, on the clock and by the code of a comparison.

A value that fails in it is left out, and the others race again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from kernelwright.core.candidate import ParamValue
from kernelwright.core.case import Case
from kernelwright.core.errors import ServiceDied
from kernelwright.judge.children import Lost
from kernelwright.judge.clock import heats_of
from kernelwright.judge.device_heat import ROUNDS, DeviceHeats
from kernelwright.judge.heat import KEPT_BYTES, MAX_CALLS, TimingFailed
from kernelwright.judge.stages import Bench, Failure

MOST_ARMS = 10
BATCH_SECONDS, BATCH_BYTES, LEAST_CALLS = 0.003, 32 << 20, 6
"""A batch of a look on the judge's own clock: a seventh of a comparison's, and a sixth of its memory."""
REPLAY_SECONDS, LEAST_ROUNDS = 0.6, 1
"""What all replays of a heat on a GPU may take together, and how often each arm goes there and back at least."""
MEMORY_SHARE = 4
"""Buffers of a heat take at most this part of the memory."""

Values = dict[str, ParamValue]
Found = float | Failure
"""A time, or why there is none."""


@dataclass(frozen=True)
class Arm:
    """Values to be timed, and what a call of theirs takes, roughly."""

    values: Values
    seconds: float


@dataclass(frozen=True)
class LookHeat:
    """How the values of one look are timed on one case."""

    case: Case
    bench: Bench
    bench_of: Callable[[Values], Bench]
    """The bench of some values, over a nursery that lives."""
    took_down: Callable[[ServiceDied], Failure]
    """What to make of a nursery that died; anybody else's death is raised."""

    def most_arms(self, anchor: Arm) -> int:
        """Return how many arms fit into memory at once, three at least; on a GPU they share their buffers."""
        if not self.bench.is_cpu:
            return MOST_ARMS
        most = min(self.bench.problem.device.memory_bytes // MEMORY_SHARE, KEPT_BYTES)
        return max(3, min(MOST_ARMS, most // (self._calls(anchor) * self._footprint)))

    def times(self, arms: Sequence[Arm]) -> list[Found]:
        """Return what a call of every arm takes in one heat, in microseconds."""
        blamed: int | None = None
        try:
            return list[Found](self._measured(arms))
        except TimingFailed as failed:
            failure = failed.failure
            blamed = failed.arm
        except Lost as lost:
            failure = Failure(lost.status, lost.reason, self.case)
        except ServiceDied as died:
            failure = self.took_down(died)
        if len(arms) == 1:
            return [failure]
        if blamed is not None:
            rest = self.times([arm for place, arm in enumerate(arms) if place != blamed])
            return [*rest[:blamed], failure, *rest[blamed:]]
        if len(arms) == 2:
            return [one for arm in arms for one in self.times([arm])]
        return _joined(self.times([arms[0], arm]) for arm in arms[1:])

    def _measured(self, arms: Sequence[Arm]) -> list[float]:
        benches = [self.bench_of(arm.values) for arm in arms]
        with heats_of(benches, boxes=1) as heats:
            if not isinstance(heats, DeviceHeats):
                return heats.measure(self.case, benches, self._calls(arms[0]))
            size = heats.size(benches[0], self.case)
            once = 2 * size * sum(arm.seconds for arm in arms)
            rounds = max(LEAST_ROUNDS, min(ROUNDS, int(REPLAY_SECONDS / once)))
            return [median(times) for times in heats.replays(self.case, benches, size, rounds=rounds)]

    @property
    def _footprint(self) -> int:
        return max(1, sum(spec.nbytes for spec in (*self.case.inputs, *self.case.outputs)))

    def _calls(self, arm: Arm) -> int:
        """Return how many calls make a batch on the judge's own clock, within the memory it may take."""
        most = min(MAX_CALLS, BATCH_BYTES // self._footprint)
        return max(LEAST_CALLS, min(most, ceil(BATCH_SECONDS / arm.seconds)))


def _joined(pairs: Iterable[list[Found]]) -> list[Found]:
    """Return pairs of anchor and arm as if all had raced in one heat: by the first anchor that was timed."""
    joined: list[Found] = []
    for against, one in pairs:
        if not joined or isinstance(joined[0], Failure):
            joined[:1] = [against]
        first = joined[0]
        if isinstance(first, float) and isinstance(against, float) and isinstance(one, float):
            joined.append(one * first / against)
        else:
            joined.append(one)
    return joined

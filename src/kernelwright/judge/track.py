"""What a race on a GPU runs on: launchers, each with buffers of its own, filled and blanked by the judge.

Device code reads and writes whatever its context has. So every arm of a race has a launcher to itself: it cannot see
what another answered, nor write there, and who breaks a context breaks its own. Launchers change arms between heats.

Before every pass the inputs become mixtures nobody has seen and the outputs blank: device code that looks for its own
earlier answer, in its outputs or in memory of its own, finds none. A pass makes most of its calls, each once, in an
order nobody has seen; the inputs of the others are closed to its device code. Who looks at the inputs of other calls
falls, who answers them answers some that are never made, and who fetches them fetches the wrong ones.

Arms are loaded and captured all at once, and replayed one by one.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import torch

from kernelwright.core.case import Case
from kernelwright.core.errors import ServiceDied
from kernelwright.core.messages.runner import Call, Region, Time, TimedArm
from kernelwright.judge.arena import once
from kernelwright.judge.children import Lost
from kernelwright.judge.device_arena import TrackArena
from kernelwright.judge.execution import LOAD_SECONDS
from kernelwright.judge.fresh import Mixtures
from kernelwright.judge.heat import TimingFailed
from kernelwright.judge.passes import Answered, Pass, dealt, spared_of, wrongly_answered, wrongly_written
from kernelwright.judge.runners import LaunchedRunner
from kernelwright.judge.stages import Bench, Failure

TIME_SECONDS = 90.0


@dataclass(frozen=True)
class Box:
    """A launcher and its buffers."""

    arena: TrackArena
    runner: LaunchedRunner

    @cached_property
    def filled(self) -> list[dict[str, torch.Tensor]]:
        """Return the inputs of every call by name: making a view takes longer than filling it."""
        specs = self.arena.cases[0].inputs
        return [
            {spec.name: once(self.arena.view(number, spec), spec) for spec in specs}
            for number in range(len(self.arena.calls))
        ]

    @cached_property
    def inputs(self) -> torch.Tensor:
        """Return the bytes of all inputs; those of every box of a track are laid out alike."""
        ends = [one.offset + one.length for call in self.arena.calls for one in _inputs(call)]
        return self.arena.inputs.bytes_view(0, max(ends, default=0))

    def wait(self) -> None:
        """Wait until the launcher has its context; no candidate has reached it yet, so its death is nobody's."""
        try:
            self.runner.ready(LOAD_SECONDS)
        except Lost as lost:
            raise ServiceDied("launcher", lost.reason) from lost

    def close(self) -> None:
        """Kill the launcher and give the memory back."""
        try:
            self.runner.__exit__()
        finally:
            self.arena.__exit__()


def _inputs(call: Call) -> list[Region]:
    return [region for region in call.regions.values() if region.slab == "inputs"]


@dataclass
class Track:
    """Boxes for the arms of one case: one for each, more, or one for all."""

    case: Case
    boxes: tuple[Box, ...]
    arms: tuple[TimedArm, ...]
    mixtures: Mixtures
    rng: random.Random
    heats: int = 0
    places: Sequence[tuple[int, int]] = ()
    """In which box each arm is in this heat, and its number there: one box can be faster than another by its memory."""

    def load(self) -> None:
        """Put the arms into boxes by lot, or the only one in turn, and have them loaded anew."""
        count = len(self.boxes)
        lots = self.rng.sample(range(max(count, len(self.arms))), len(self.arms))
        if len(self.arms) == 1:
            lots = [
                self.heats % count
            ]  # in turn: by lot, one certificate in eight came from one launcher alone
        self.places = [(lot % count, lot // count) for lot in lots]
        self.mixtures.draw_hard()
        self.refill()
        for rank in range(-(-len(self.arms) // count)):
            self._all_asked(
                {
                    place: Time(load=arm, arm=rank)
                    for place, arm in enumerate(self.arms)
                    if self.places[place][1] == rank
                }
            )

    def refill(self) -> Pass:
        """Give every call inputs nobody has seen, the same in all boxes, and draw which calls are made."""
        first, *others = self.boxes
        size = len(first.filled)
        now = dealt(size, spared_of(size), self.rng)
        self.mixtures.fill_all(first.filled)
        now = now._replace(hard=self.mixtures.harden(first.filled, now.made))
        used = {box for box, _ in self.places}
        for number, other in enumerate(others, start=1):
            if number in used:
                other.inputs.copy_(first.inputs)
        torch.cuda.synchronize()
        return now

    def turns(self, order: Sequence[int]) -> list[tuple[int, ...]]:
        """Return arms whose answers lie side by side, in order: all of them, or, in one box, one by one."""
        return [tuple(order)] if len(self.boxes) >= len(self.arms) else [(place,) for place in order]

    def capture(self, turn: Sequence[int], calls: Sequence[int]) -> None:
        """Have arms, each in a box of its own, capture calls, which they will find blank."""
        for place in turn:
            self.arena(place).poison_outputs()
        torch.cuda.synchronize()
        self._all_asked({place: Time(arm=self.places[place][1], calls=tuple(calls)) for place in turn})

    def replay(self, place: int) -> float:
        """Return the seconds an arm takes for the calls it has captured."""
        (seconds,) = self.asked(place, Time(replays=1))
        return seconds

    def asked(self, place: int, order: Time) -> list[float]:
        """Return what an arm's launcher has measured; whatever happens to it meanwhile, the arm did it."""
        try:
            self._runner(place).time(order)
            return self._runner(place).timed(order, TIME_SECONDS)
        except Lost as lost:
            raise TimingFailed(place, Failure(lost.status, lost.reason, self.case)) from lost

    def _all_asked(self, orders: Mapping[int, Time]) -> None:
        """Have the launchers of arms carry out orders at once; all have done so before the first failure is told."""
        failures: dict[int, Failure] = {}
        for is_sent in (False, True):
            for place in orders.keys() - failures:
                try:
                    if is_sent:
                        self._runner(place).timed(orders[place], TIME_SECONDS)
                    else:
                        self._runner(place).time(orders[place])
                except Lost as lost:
                    failures[place] = Failure(lost.status, lost.reason, self.case)
        if failures:
            raise TimingFailed(min(failures), failures[min(failures)])

    def _runner(self, place: int) -> LaunchedRunner:
        return self.boxes[self.places[place][0]].runner

    def check(self, benches: Sequence[Bench], turn: Sequence[int], now: Pass, *, is_looked_at: bool) -> None:
        """Check what arms wrote in a pass."""
        arms = []
        for place in turn:
            is_judged = place < len(benches) and benches[place].is_planned
            arms.append(Answered(place, self.arena(place), benches[place] if is_judged else None))
        for arm in arms:
            if arm.bench and (failure := wrongly_written(arm.arena, now, self.case)):
                raise TimingFailed(arm.place, failure)
        few = len(self.boxes) < len(self.arms)
        if is_looked_at and (found := wrongly_answered(arms, now, self.case, self.rng, few=few)):
            raise TimingFailed(*found)

    def arena(self, place: int) -> TrackArena:
        """Return the buffers an arm has in this heat."""
        return self.boxes[self.places[place][0]].arena

    @property
    def nbytes(self) -> int:
        """Return how much memory of the device its buffers take."""
        return sum(box.arena.inputs.nbytes + 2 * box.arena.outputs.nbytes for box in self.boxes)

    def close(self) -> None:
        """Kill all launchers and give the memory back."""
        with ExitStack() as stack:
            for box in self.boxes:
                stack.callback(box.close)

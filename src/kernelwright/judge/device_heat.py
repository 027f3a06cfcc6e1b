"""Heats on a GPU: tier-A arms and trusted baselines in launchers of their own, captured in graphs, there and back.

Tier-A candidates bring no host code into the timed process, so its own events can be trusted. A graph has more buffers
than the cache holds, as far as 80 of them go, so calls find it cold. For every heat all kernels are loaded anew; the
launchers themselves are replaced every few heats. What they write is checked like any other output (`judge/track.py`).
"""

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

import torch

from kernelwright.core import plugins
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.errors import DeviceBusy, ServiceDied
from kernelwright.core.messages.runner import DeviceJob, Time, TimedArm
from kernelwright.core.verdict import Status
from kernelwright.hardware.peaks import least_seconds
from kernelwright.judge.children import Lost, Service
from kernelwright.judge.device_arena import TrackArena
from kernelwright.judge.execution import collect, compile_ahead, compile_cases
from kernelwright.judge.fresh import Mixtures
from kernelwright.judge.heat import Start, TimingFailed
from kernelwright.judge.passes import SPARED
from kernelwright.judge.runners import launched
from kernelwright.judge.stages import Bench, Failure
from kernelwright.judge.track import Box, Track

ROUNDS, RACE_ROUNDS = 4, 2
"""There and back: every arm is replayed twice as often in one heat. A race has heats enough,
and those of one kernel vary by 0.1 to 0.4 %; half of the work of a heat is done anew for every pass."""
HEATS_PER_LAUNCHER = 48
"""Arms change launchers with every heat: a faster launcher is as often one arm's as another's. With sixteen, two fifths
of a race of sixteen arms went into opening launchers and closing them again."""
LEAST_CALLS, MOST_CALLS = 2, 80
GRAPH_SECONDS, GRAPH_BYTES, MEMORY_SHARE = 0.6e-3, 3 << 30, 32
"""How long a graph should take, or what its calls move if no data sheet tells the time, but for a small part of the
device's memory: the launch of the graph itself must drown in them."""
WARM_CALLS = 32
L2_ROTATIONS = 4
"""Buffers of all calls of a graph together exceed the L2 cache this many times, so every call finds it cold: not those
of a few MB, of which there are not enough."""
UNKNOWN_L2_BYTES = 128 << 20
SLOPE_SECONDS, SLOPE_REPLAYS, SLOPE_TOLERANCE, SLOPE_ATTEMPTS = 5e-3, (4, 16), 0.05, 4
"""Length of a replay, replays of the two batches, how far the judge's own clock may be from the launcher's, and how
often it may be by noise."""

ALONE_BOXES = 2
"""Launchers a candidate changes between when it is timed alone: where its memory lies made eager softmax 368 us, 424 us
or 452 us long, heat after heat."""
CERTIFIED_TOLERANCE = 0.3
"""How far calls by the judge's clock may be from certified ones: many in a row can cost a hot device its pace."""
KEPT_SHARE = 4
"""Buffers kept from one heat to the next take at most this part of a device's memory, and what is timed now."""

COPIED_BYTES, COPIES = 64 << 20, 128
"""What the judge copies itself, about as long as a replay, to see whether somebody else uses the device."""
SHARED_SECONDS, SHARED_PAUSE = 120.0, 2.0


class Rival(NamedTuple):
    """A trusted arm that is no candidate: eager, compiled, or a file from outside."""

    name: str
    kind: Literal["eager", "compiled"]
    source: str
    mode: str = "default"


def calls_for(case: Case, device: Device) -> int:
    """Return for how many calls there are buffers; those a pass makes are too many for the cache, and to be quick."""
    footprint = max(1, sum(spec.nbytes for spec in (*case.inputs, *case.outputs)))
    cold = L2_ROTATIONS * (device.cache_bytes or UNKNOWN_L2_BYTES) / footprint
    least = least_seconds(plugins.load("ops", case.op).work(case), device)
    long = GRAPH_SECONDS / least if least else GRAPH_BYTES / footprint
    wanted = max(cold, min(long, device.memory_bytes / MEMORY_SHARE / footprint))
    return max(LEAST_CALLS, min(MOST_CALLS, math.ceil(wanted * SPARED / (SPARED - 1))))


class DeviceHeats:
    """All heats of one race, or of one certified timing.

    With `boxes` so many launchers serve all arms: one will do for a look, which keeps nothing and whose arms are of one
    source; what is timed alone changes between several.
    """

    def __init__(
        self, rivals: Sequence[Rival] = (), starts: Sequence[Start] = (), *, boxes: int | None = None
    ) -> None:
        self.rivals = tuple(rivals)
        self.starts = tuple(starts)
        self.boxes = boxes
        self.tracks: dict[tuple[str, int], Track] = {}
        """By case and by the parent their launchers were born from."""
        self.mixtures: dict[str, Mixtures] = {}
        """Of every case: a launcher's memory ends with it, the draws it saw may serve the next."""
        self.arms: dict[tuple[str, str], TimedArm] = {}
        """By case and candidate."""

    def __enter__(self) -> "DeviceHeats":
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for track in self.tracks.values():
                stack.callback(track.close)
            self.tracks.clear()
        # What torch keeps of it for later is missing to the launchers of the next race, which are other processes.
        with suppress(
            RuntimeError
        ):  # a device that is gone has nothing to give back, and that is told elsewhere
            torch.cuda.empty_cache()

    def size(self, bench: Bench, case: Case) -> int:
        """Return how many calls of a case have buffers."""
        return calls_for(case, bench.problem.device)

    def measure(self, case: Case, benches: Sequence[Bench], size: int, start: int = 0) -> list[float]:
        """Return the median time of a call of every candidate, then of every rival, in microseconds."""
        found = self.replays(case, benches, size, start, RACE_ROUNDS)
        return [median(times) for times in found]

    def replays(
        self, case: Case, benches: Sequence[Bench], size: int, start: int = 0, rounds: int = ROUNDS
    ) -> list[list[float]]:
        """Return the time of a call in every replay of one heat, per arm."""
        track = self._track(case, benches, size, start)
        try:
            return self._timed(track, benches, rounds)
        except TimingFailed:
            # A launcher it may have broken is nobody else's.
            self.tracks.pop((case.hash, start)).close()
            raise

    def _timed(self, track: Track, benches: Sequence[Bench], rounds: int) -> list[list[float]]:
        track.load()
        passes = there_and_back(len(track.arms), rounds, track.rng)
        looked_at = track.rng.randrange(len(passes))
        times = [list[float]() for _ in track.arms]
        for number, order in enumerate(passes):
            now = track.refill()
            for turn in track.turns(order):
                track.capture(turn, now.made)
                for place in turn:
                    times[place].append(track.replay(place) / len(now.made) * 1e6)
                track.check(benches, turn, now, is_looked_at=number == looked_at)
        return times

    def _track(self, case: Case, benches: Sequence[Bench], size: int, start: int) -> Track:
        """Return the boxes of a case, fresh ones every few heats; whoever leaves a race leaves his to the others."""
        key = (case.hash, start)
        track = self.tracks.get(key)
        if track and track.heats >= HEATS_PER_LAUNCHER:
            self.tracks.pop(key).close()
            track = None
        if track is None:
            if (
                sum(one.nbytes for one in self.tracks.values())
                > benches[0].problem.device.memory_bytes // KEPT_SHARE
            ):
                self.__exit__()
            track = self.tracks[key] = self._opened(case, benches, size, start)
        track.arms = tuple(self._arms_of(benches, case))
        track.heats += 1
        return track

    def _arms_of(self, benches: Sequence[Bench], case: Case) -> Iterator[TimedArm]:
        """Yield the arms of a case as launchers run them; a candidate's is made once."""
        for place, bench in enumerate(benches):
            key = (case.hash, bench.candidate.hash)
            if key not in self.arms:
                self.arms[key] = _arm(bench, case, place)
            yield self.arms[key]
        for rival in self.rivals:
            yield TimedArm(name=rival.name, kind=rival.kind, source=rival.source, mode=rival.mode)

    def _opened(self, case: Case, benches: Sequence[Bench], size: int, start: int) -> Track:
        first = benches[0]
        for bench in benches:
            if bench.is_planned:
                compile_ahead(bench.candidate, [case], bench.problem.device, bench.builds)
        arms = tuple(self._arms_of(benches, case))
        nursery = self.starts[start](first) if self.starts else first.nursery
        with ExitStack() as stack:
            boxes = []
            for _ in range(self.boxes or len(arms)):
                boxes.append(opened(case, size, first, nursery))
                stack.callback(boxes[-1].close)
            # All are started before the first is waited for: a context takes longer than a heat.
            for box in boxes:
                box.wait()
            if case.hash not in self.mixtures:
                self.mixtures[case.hash] = Mixtures(case, first.where, first.rng)
            stack.pop_all()
        return Track(case, tuple(boxes), arms, self.mixtures[case.hash], first.rng)


def opened(case: Case, size: int, bench: Bench, nursery: Service) -> Box:
    """Return a launcher with buffers for calls of a case."""
    index = bench.problem.device.index
    arena = TrackArena([case], [0] * size, bench.rng, index=index)
    arena.poison_outputs()
    job = DeviceJob(
        index=index,
        folder="",
        cases=arena.cases,
        calls=arena.calls,
        plans=(None,),
        input_bytes=arena.inputs.sizes,
        output_bytes=arena.outputs.nbytes,
    )
    # No spare is started here: making its context would disturb what is being timed.
    try:
        return Box(arena, launched(nursery, job, arena, bench.home, ahead=False))
    except (Lost, ServiceDied):
        arena.__exit__()
        raise


def _arm(bench: Bench, case: Case, place: int) -> TimedArm:
    """Return a candidate as the launcher runs it, by its plan or by the function of a baseline; not placed yet."""
    candidate = bench.candidate
    if not bench.is_planned:
        mode = str(candidate.values_for(case.hash).get("mode", "default"))
        kind: Literal["eager", "compiled"] = "eager" if candidate.backend == "eager" else "compiled"
        return TimedArm(name=str(place), kind=kind, source=candidate.source, mode=mode)
    device, builds = bench.problem.device, bench.builds
    try:
        (plan,) = compile_cases(candidate, [case], device, builds)
    except Lost as lost:
        raise TimingFailed(place, Failure(lost.status, lost.reason, case)) from lost
    folder = collect(candidate, [case], device, builds, bench.home)
    return TimedArm(name=str(place), kind="plan", plan=plan, folder=folder)


def there_and_back(arms: int, rounds: int, rng: random.Random) -> list[tuple[int, ...]]:
    """Return passes in which every arm comes as often before any other as after it."""
    passes: list[tuple[int, ...]] = []
    for _ in range(rounds):
        once_through = tuple(rng.sample(range(arms), arms))
        passes += [once_through, once_through[::-1]]
    return passes


class Certified(NamedTuple):
    """What a candidate took alone."""

    times_us: list[float]
    warm_us: float
    """With its inputs still in the cache."""


def time_alone(bench: Bench, case: Case, heats: int) -> Certified:
    """Return times of one accepted tier-A candidate, checked against the judge's own clock."""
    with DeviceHeats(boxes=ALONE_BOXES) as keeper:
        size = keeper.size(bench, case)
        replays = [keeper.replays(case, [bench], size)[0] for _ in range(heats)]
        track = keeper.tracks[case.hash, 0]
        # With the last of them alone: another launcher can be another pace.
        _compare_clocks(track, case, median(replays[-1]), bench)
        order = Time(calls=(0,), repeats=WARM_CALLS, replays=2 * ROUNDS)
        warm = median(track.asked(0, order)) / WARM_CALLS * 1e6
    return Certified([value for heat in replays for value in heat], warm)


def _compare_clocks(track: Track, case: Case, call_us: float, bench: Bench) -> None:
    """Refuse events that the judge's wall clock does not confirm: the slope between few and many long replays.

    A device that somebody else uses makes them disagree too, on a plain copy of our own; that is waited for.
    """
    repeats = repeats_for(call_us, len(track.boxes[0].filled))
    deadline = time.monotonic() + SHARED_SECONDS
    while True:
        for _ in range(SLOPE_ATTEMPTS):
            events, slope = clocks(track, repeats)
            per_call = slope / repeats / len(track.boxes[0].filled) * 1e6
            if slope <= (1 + SLOPE_TOLERANCE) * events and per_call <= (1 + CERTIFIED_TOLERANCE) * call_us:
                return
        device = bench.problem.device
        if not is_shared(device.index):
            break
        if time.monotonic() > deadline:
            raise DeviceBusy(device.title, "another process that takes no lock", SHARED_SECONDS)
        bench.progress(f"waiting for {device.title}: another process uses it")
        time.sleep(SHARED_PAUSE)
    reason = (
        f"the launcher's events say {events * 1e3:.3f} ms a replay, the judge's clock {slope * 1e3:.3f} ms, "
        f"the certified passes {call_us * repeats * len(track.boxes[0].filled) * 1e-3:.3f} ms"
    )
    raise TimingFailed(0, Failure(Status.TIMING_SUSPECT, reason, case))


def is_shared(index: int) -> bool:
    """Tell whether the two clocks disagree on copies this process makes itself: then it is not the candidate."""
    walls, spans = [], [0.0]
    with torch.cuda.device(index):
        source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        torch.cuda.synchronize()
        for count in SLOPE_REPLAYS:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
            started = time.perf_counter()
            marks[0].record()
            for mark in marks[1:]:
                for _ in range(COPIES):
                    target.copy_(source)
                mark.record()
            torch.cuda.synchronize()
            walls.append(time.perf_counter() - started)
            spans = [before.elapsed_time(after) * 1e-3 for before, after in pairwise(marks)]
    slope = (walls[1] - walls[0]) / (SLOPE_REPLAYS[1] - SLOPE_REPLAYS[0])
    return slope > (1 + SLOPE_TOLERANCE) * median(spans)


def repeats_for(call_us: float, calls: int) -> int:
    """Return how often the calls of a graph are repeated in it for both clocks to see a replay of some milliseconds."""
    return max(1, math.ceil(SLOPE_SECONDS / (call_us * 1e-6 * calls)))


def clocks(track: Track, repeats: int) -> tuple[float, float]:
    """Return the seconds of a replay of the first arm by the launcher's events and by the judge's own clock."""
    walls = []
    # Captured before: the first capture of two took longer, and made the slope of short kernels 2 to 6 % too small.
    track.asked(0, Time(calls=tuple(range(len(track.boxes[0].filled))), repeats=repeats))
    for count in SLOPE_REPLAYS:
        started = time.perf_counter()
        seconds = track.asked(0, Time(replays=count))
        walls.append(time.perf_counter() - started)
    return median(seconds), (walls[1] - walls[0]) / (SLOPE_REPLAYS[1] - SLOPE_REPLAYS[0])

"""Heats on a GPU: tier-A arms and trusted baselines in one launcher, captured in graphs, replayed there and back.

Tier-A candidates bring no host code into the timed process, so its own events can be trusted, and all arms share one
launcher. Each arm has buffers of its own with the same content, more of them than the cache holds, so every call finds
it cold. For every heat all kernels are loaded anew in random order; the launcher itself is replaced every few heats.
Before every pass through the arms the inputs become mixtures nobody has seen and the outputs blank: device code that
looks for its own earlier answer, in its outputs or in memory of its own, finds none. No buffer is used twice in a pass.
What is written there is checked like any other output.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

import torch

from kernelwright.core import plugins
from kernelwright.core.case import Case
from kernelwright.core.device import Device
from kernelwright.core.errors import DeviceBusy
from kernelwright.core.messages.runner import Call, DeviceJob, Region, Time, TimedArm
from kernelwright.core.verdict import Status
from kernelwright.hardware.peaks import least_seconds
from kernelwright.judge.arena import once
from kernelwright.judge.children import Lost
from kernelwright.judge.device_arena import DeviceArena
from kernelwright.judge.execution import LOAD_SECONDS, collect, compile_ahead, compile_cases
from kernelwright.judge.fresh import SAMPLES, Hard, Mixtures, most_apart
from kernelwright.judge.heat import Start, TimingFailed
from kernelwright.judge.runners import LaunchedRunner, launched
from kernelwright.judge.stages import Bench, Failure
from kernelwright.judge.stages.checks import answers_to, check_answers, drawn

ROUNDS = 4
"""There and back: every arm is replayed twice as often in one heat."""
HEATS_PER_LAUNCHER = 4
LEAST_CALLS, MOST_CALLS = 2, 64
GRAPH_SECONDS, GRAPH_BYTES, MEMORY_SHARE = 0.6e-3, 3 << 30, 32
"""How long a graph should take, or what its calls move if no data sheet tells the time, but for a small part of the
device's memory: the launch of the graph itself must drown in them."""
WARM_CALLS = 32
L2_ROTATIONS = 4
"""Buffers of all calls of a graph together exceed the L2 cache this many times, so every call finds it cold."""
UNKNOWN_L2_BYTES = 128 << 20
TIME_SECONDS = 90.0
SLOPE_SECONDS, SLOPE_REPLAYS, SLOPE_TOLERANCE, SLOPE_ATTEMPTS = 5e-3, (4, 16), 0.05, 4
"""Length of a replay, replays of the two batches, how far the judge's own clock may be from the launcher's, and how
often it may be by the noise of capturing the graph anew, which both batches begin with."""

COPIED_BYTES, COPIES = 64 << 20, 128
"""What the judge copies itself, about as long as a replay, to see whether somebody else uses the device."""
SHARED_SECONDS, SHARED_PAUSE = 120.0, 2.0


class Rival(NamedTuple):
    """A trusted arm that is no candidate: eager, compiled, or a file from outside."""

    name: str
    kind: str
    source: str
    mode: str = "default"


def calls_for(case: Case, device: Device) -> int:
    """Return how many calls a graph holds, each on buffers of its own: too many for the cache, and to be quick."""
    footprint = max(1, sum(spec.nbytes for spec in (*case.inputs, *case.outputs)))
    cold = L2_ROTATIONS * (device.cache_bytes or UNKNOWN_L2_BYTES) / footprint
    least = least_seconds(plugins.load("ops", case.op).work(case), device)
    long = GRAPH_SECONDS / least if least else GRAPH_BYTES / footprint
    wanted = max(cold, min(long, device.memory_bytes / MEMORY_SHARE / footprint))
    # An even number: the buffers of all arms are laid out alike, and one copy fills those of the next.
    return max(LEAST_CALLS, min(MOST_CALLS, 2 * math.ceil(wanted / 2)))


@dataclass
class Track:
    """A launcher and the buffers of all arms on one case."""

    arena: DeviceArena
    runner: LaunchedRunner
    arms: tuple[TimedArm, ...]
    size: int
    mixtures: Mixtures
    heats: int = 0
    homes: Sequence[int] = ()
    """Which part of the buffers each arm has in this heat: one part can be faster than another by its addresses."""

    def refill(self, *, is_looked_at: bool = False) -> Hard | None:
        """Give every call inputs nobody has seen, the same to all arms, and blank every output.

        One call of a pass that is looked at has hard inputs: returned is which.
        """
        for call in self.filled:
            for name, tensor in call.items():
                self.mixtures.fill(name, tensor)
        hard = self.mixtures.harden(self.filled) if is_looked_at else None
        first, *others = self.parts
        for other in others:
            other.copy_(first)
        self.arena.poison_outputs()
        torch.cuda.synchronize()
        return hard

    @cached_property
    def filled(self) -> list[dict[str, torch.Tensor]]:
        """Return the inputs of the first part's calls by name: making a view takes longer than filling it."""
        specs = self.arena.cases[0].inputs
        return [
            {spec.name: once(self.arena.view(number, spec), spec) for spec in specs}
            for number in range(self.size)
        ]

    @cached_property
    def parts(self) -> tuple[torch.Tensor, ...]:
        """Return the bytes of the inputs, a part for every arm, all laid out alike."""
        inputs, calls = self.arena.inputs, self.arena.calls
        ends = [max((one.offset + one.length for one in _inputs(call)), default=0) for call in calls]
        length = ends[self.size - 1]
        return tuple(inputs.bytes_view(0, length * len(self.arms)).view(len(self.arms), length))

    def placed(self, place: int) -> TimedArm:
        """Return an arm on the buffers it has in this heat."""
        return self.arms[place].model_copy(update={"calls": numbers(self.homes[place], self.size)})

    def close(self) -> None:
        """Kill the launcher and give the memory back."""
        self.runner.__exit__()
        self.arena.__exit__()


class DeviceHeats:
    """All heats of one race, or of one certified timing."""

    def __init__(self, rivals: Sequence[Rival] = (), starts: Sequence[Start] = ()) -> None:
        self.rivals = tuple(rivals)
        self.starts = tuple(starts)
        self.tracks: dict[str, Track] = {}
        self.mixtures: dict[str, Mixtures] = {}
        """Of every case: a launcher's memory ends with it, the draws it saw may serve the next."""

    def __enter__(self) -> "DeviceHeats":
        return self

    def __exit__(self, *_: object) -> None:
        for track in self.tracks.values():
            track.close()

    def size(self, bench: Bench, case: Case) -> int:
        """Return how many calls one graph of a case holds."""
        return calls_for(case, bench.problem.device)

    def measure(self, case: Case, benches: Sequence[Bench], size: int, start: int = 0) -> list[float]:
        """Return the median time of a call of every candidate, then of every rival, in microseconds."""
        return [median(times) for times in self.replays(case, benches, size, start)]

    def replays(
        self, case: Case, benches: Sequence[Bench], size: int, start: int = 0, rounds: int = ROUNDS
    ) -> list[list[float]]:
        """Return the time of a call in every replay of one heat, per arm."""
        track = self._track(case, benches, size, start)
        rng, seconds = benches[0].rng, [list[float]() for _ in track.arms]
        track.refill()
        loaded = rng.sample(range(len(track.arms)), len(track.arms))
        # The graphs are captured once; every pass through them finds other inputs and blank outputs.
        _asked(track, Time(arms=tuple(track.placed(place) for place in loaded), order=(), repeats=1), case)
        passes = there_and_back(len(track.arms), rounds, rng)
        looked_at = rng.randrange(len(passes))
        for number, order in enumerate(passes):
            hard = track.refill(is_looked_at=number == looked_at)
            again = Time(arms=(), order=tuple(loaded.index(place) for place in order), repeats=1)
            for place, value in zip(order, _asked(track, again, case), strict=True):
                seconds[place].append(value / size * 1e6)
            check_written(track, benches, case)
            if hard is not None:
                check_answers_of(track, benches, case, hard)
        return seconds

    def _track(self, case: Case, benches: Sequence[Bench], size: int, start: int) -> Track:
        """Return the launcher of a case, a fresh one every few heats and whenever an arm has left."""
        track = self.tracks.get(case.hash)
        count = len(benches) + len(self.rivals)
        if track and (track.heats >= HEATS_PER_LAUNCHER or len(track.arms) != count):
            self.tracks.pop(case.hash).close()
            track = None
        if track is None:
            track = self.tracks[case.hash] = self._opened(case, benches, size, start)
        track.heats += 1
        track.homes = benches[0].rng.sample(range(count), count)
        return track

    def _opened(self, case: Case, benches: Sequence[Bench], size: int, start: int) -> Track:
        first, device = benches[0], benches[0].problem.device
        for bench in benches:
            if bench.is_planned:
                compile_ahead(bench.candidate, [case], device, bench.builds)
        arms = [_arm(bench, case, place) for place, bench in enumerate(benches)]
        arms += [
            TimedArm(
                name=rival.name,
                kind=rival.kind,  # type: ignore[arg-type]
                source=rival.source,
                mode=rival.mode,
                calls=(0,),
            )
            for rival in self.rivals
        ]
        arena = DeviceArena([case], [0] * (size * len(arms)), first.rng, index=device.index)
        arena.poison_outputs()
        job = DeviceJob(
            index=device.index,
            folder="",
            cases=arena.cases,
            calls=arena.calls,
            plans=(None,),
            input_bytes=arena.inputs.nbytes,
            output_bytes=arena.outputs.nbytes,
        )
        nursery = self.starts[start](first) if self.starts else first.nursery
        # No spare is started here: making its context would disturb what is being timed.
        runner = launched(nursery, job, arena, first.home, ahead=False)
        runner.ready(LOAD_SECONDS)
        if case.hash not in self.mixtures:
            self.mixtures[case.hash] = Mixtures(case, first.where, first.rng)
        return Track(arena, runner, tuple(arms), size, self.mixtures[case.hash])


def _arm(bench: Bench, case: Case, place: int) -> TimedArm:
    """Return a candidate as the launcher runs it, by its plan or by the function of a baseline; not placed yet."""
    candidate = bench.candidate
    if not bench.is_planned:
        mode = str(candidate.values_for(case.hash).get("mode", "default"))
        kind: Literal["eager", "compiled"] = "eager" if candidate.backend == "eager" else "compiled"
        return TimedArm(name=str(place), kind=kind, source=candidate.source, mode=mode, calls=(0,))
    device, builds = bench.problem.device, bench.builds
    try:
        (plan,) = compile_cases(candidate, [case], device, builds)
    except Lost as lost:
        raise TimingFailed(place, Failure(lost.status, lost.reason, case)) from lost
    folder = collect(candidate, [case], device, builds, bench.home)
    return TimedArm(name=str(place), kind="plan", plan=plan, folder=folder, calls=(0,))


def _inputs(call: Call) -> list[Region]:
    return [region for region in call.regions.values() if region.slab == "inputs"]


def numbers(home: int, size: int) -> tuple[int, ...]:
    """Return the calls that have their buffers in a part."""
    return tuple(range(home * size, (home + 1) * size))


def there_and_back(arms: int, rounds: int, rng: random.Random) -> list[tuple[int, ...]]:
    """Return passes in which every arm comes as often before any other as after it."""
    passes: list[tuple[int, ...]] = []
    for _ in range(rounds):
        once_through = tuple(rng.sample(range(arms), arms))
        passes += [once_through, once_through[::-1]]
    return passes


def _asked(track: Track, order: Time, case: Case) -> list[float]:
    """Return the seconds of every replay of an order."""
    try:
        return track.runner.time(order, TIME_SECONDS)
    except Lost as lost:
        raise TimingFailed(0, Failure(lost.status, lost.reason, case)) from lost


def check_written(track: Track, benches: Sequence[Bench], case: Case) -> None:
    """Check that every call of a pass wrote its outputs; a baseline returns its own, and nobody copies them."""
    planned = [place for place, bench in enumerate(benches) if bench.is_planned]
    # One look at all of them first: it costs as much as a look at one.
    if len(planned) == len(track.arms) and not track.arena.sampled(0, len(track.arena.calls), SAMPLES)[1]:
        return
    for place in planned:
        looked, left = track.arena.sampled(track.homes[place] * track.size, track.size, SAMPLES)
        if left:
            reason = f"{left} of {looked} random output elements never written in timed calls"
            raise TimingFailed(place, Failure(Status.NOT_WRITTEN, reason, case))


def check_answers_of(track: Track, benches: Sequence[Bench], case: Case, hard: Hard) -> None:
    """Check a random call of a pass against float64, the one with hard inputs, and the one they disagree on most."""
    arena, starts = track.arena, [home * track.size for home in track.homes]
    planned = [place for place, bench in enumerate(benches) if bench.is_planned]
    chosen = {hard.call, benches[0].rng.randrange(track.size)}
    if len(planned) > 1:
        arms = [partial(arena.elements, first=starts[place]) for place in planned]
        chosen.add(most_apart(arms, case.outputs, track.size, arena.generator, hard.call))
    for number in chosen:
        # All arms were given the same inputs: one answer of the reference judges all of them.
        answers = answers_to(benches[0], arena, number)
        for place in planned:
            # A narrow miss on a hard draw is looked at again, as it is where those are tried.
            again = drawn(benches[place], case, hard.kind) if number == hard.call else None
            if failure := check_answers(benches[place], arena, starts[place] + number, answers, again=again):
                raise TimingFailed(place, failure)


class Certified(NamedTuple):
    """What a candidate took alone."""

    times_us: list[float]
    warm_us: float
    """With its inputs still in the cache."""


def time_alone(bench: Bench, case: Case, heats: int) -> Certified:
    """Return times of one accepted tier-A candidate, checked against the judge's own clock."""
    with DeviceHeats() as keeper:
        size = keeper.size(bench, case)
        times = [value for _ in range(heats) for value in keeper.replays(case, [bench], size)[0]]
        track = keeper.tracks[case.hash]
        _compare_clocks(track, case, median(times), bench)
        alone = track.arms[0].model_copy(update={"calls": (0,)})
        order = Time(arms=(alone,), order=(0,) * 2 * ROUNDS, repeats=WARM_CALLS)
        warm = median(track.runner.time(order, TIME_SECONDS)) / WARM_CALLS * 1e6
    return Certified(times, warm)


def _compare_clocks(track: Track, case: Case, call_us: float, bench: Bench) -> None:
    """Refuse events that the judge's wall clock does not confirm: the slope between few and many long replays.

    A device that somebody else uses makes them disagree too, on a plain copy of our own; that is waited for.
    """
    repeats = max(1, math.ceil(SLOPE_SECONDS / (call_us * 1e-6 * track.size)))
    deadline = time.monotonic() + SHARED_SECONDS
    while True:
        for _ in range(SLOPE_ATTEMPTS):
            events, slope = clocks(track, repeats)
            if slope <= (1 + SLOPE_TOLERANCE) * events:
                return
        device = bench.problem.device
        if not is_shared(device.index):
            break
        if time.monotonic() > deadline:
            raise DeviceBusy(device.title, "another process that takes no lock", SHARED_SECONDS)
        bench.progress(f"waiting for {device.title}: another process uses it")
        time.sleep(SHARED_PAUSE)
    reason = (
        f"the launcher's events say {events * 1e3:.3f} ms a replay, the judge's clock {slope * 1e3:.3f} ms"
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


def clocks(track: Track, repeats: int) -> tuple[float, float]:
    """Return the seconds of a replay of the first arm by the launcher's events and by the judge's own clock."""
    walls = []
    for count in SLOPE_REPLAYS:
        order = Time(arms=(track.placed(0),), order=(0,) * count, repeats=repeats)
        started = time.perf_counter()
        seconds = track.runner.time(order, TIME_SECONDS)
        walls.append(time.perf_counter() - started)
    return median(seconds), (walls[1] - walls[0]) / (SLOPE_REPLAYS[1] - SLOPE_REPLAYS[0])

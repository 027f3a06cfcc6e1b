"""Heats on a GPU: tier-A arms and trusted baselines in one launcher, captured in graphs, replayed there and back.

Tier-A candidates bring no host code into the timed process, so its own events can be trusted, and all arms share one
launcher. Each arm has buffers of its own with the same content, more of them than the cache holds, so every call finds
it cold. For every heat the inputs change and all kernels are loaded anew in random order; the launcher itself is
replaced every few heats. What the last replay wrote is checked like any other output.
"""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal, NamedTuple

import torch

from kernelwright.core.case import Case, Distribution
from kernelwright.core.device import Device
from kernelwright.core.errors import DeviceBusy
from kernelwright.core.messages.runner import DeviceJob, Time, TimedArm
from kernelwright.core.verdict import Status
from kernelwright.judge.children import LaunchedRunner, Lost, launched
from kernelwright.judge.device_arena import DeviceArena
from kernelwright.judge.execution import LOAD_SECONDS, collect, compile_ahead, compile_cases
from kernelwright.judge.fresh import SAMPLES
from kernelwright.judge.heat import Start, TimingFailed
from kernelwright.judge.stages import Bench, Failure
from kernelwright.judge.stages.checks import answers_to, check_answers

ROUNDS = 6
"""There and back: every arm is replayed twice as often in one heat."""
HEATS_PER_LAUNCHER = 4
LEAST_CALLS, MOST_CALLS = 2, 64
LEAST_LAUNCHES = 32
"""Calls in one graph, repeats included: the launch of the graph itself must drown in them."""
BASES = 2
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
    """Return how many calls a graph holds: enough buffers to leave nothing of a call in the cache for the next."""
    footprint = sum(spec.nbytes for spec in (*case.inputs, *case.outputs))
    wanted = L2_ROTATIONS * (device.cache_bytes or UNKNOWN_L2_BYTES)
    return max(LEAST_CALLS, min(MOST_CALLS, math.ceil(wanted / max(footprint, 1))))


@dataclass
class Track:
    """A launcher and the buffers of all arms on one case."""

    arena: DeviceArena
    runner: LaunchedRunner
    arms: tuple[TimedArm, ...]
    size: int
    heats: int = 0
    homes: Sequence[int] = ()
    """Which part of the buffers each arm has in this heat: one part can be faster than another by its addresses."""

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
        rng = benches[0].rng
        refill(track, case, benches[0], rng)
        order = there_and_back(len(track.arms), rounds, rng)
        repeats = math.ceil(LEAST_LAUNCHES / size)
        seconds = _timed(track, order, repeats, rng, case)
        check_left(track, benches, case)
        return [[value / (size * repeats) * 1e6 for value in row] for row in seconds]

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
        return Track(arena, runner, tuple(arms), size)


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


def numbers(home: int, size: int) -> tuple[int, ...]:
    """Return the calls that have their buffers in a part."""
    return tuple(range(home * size, (home + 1) * size))


def there_and_back(arms: int, rounds: int, rng: random.Random) -> tuple[int, ...]:
    """Return an order in which every arm comes as often before any other as after it."""
    order: list[int] = []
    for _ in range(rounds):
        once = rng.sample(range(arms), arms)
        order += [*once, *reversed(once)]
    return tuple(order)


def refill(track: Track, case: Case, bench: Bench, rng: random.Random) -> None:
    """Give every call inputs nobody has seen, the same to all arms, and poison every output."""
    where = f"cuda:{bench.problem.device.index}"
    drawn = [bench.op.make_inputs(case, Distribution.SIGNED, bench.seed) for _ in range(BASES)]
    bases = [{name: tensor.to(where) for name, tensor in base.items()} for base in drawn]
    for number in range(track.size):
        base, factor, shift = bases[number % BASES], rng.uniform(0.5, 2.0), rng.randrange(1, 1000)
        fresh = {
            name: tensor * factor if tensor.is_floating_point() else tensor.roll(shift)
            for name, tensor in base.items()
        }
        for place in range(len(track.arms)):
            track.arena.write_inputs(place * track.size + number, fresh)
    track.arena.poison_outputs()
    torch.cuda.synchronize()


def _timed(
    track: Track, order: Sequence[int], repeats: int, rng: random.Random, case: Case
) -> list[list[float]]:
    """Return the seconds of every replay, per arm; the arms are handed over, and so loaded, in random order."""
    shuffled = rng.sample(range(len(track.arms)), len(track.arms))
    arms = tuple(track.placed(place) for place in shuffled)
    places = tuple(shuffled.index(place) for place in order)
    try:
        seconds = track.runner.time(Time(arms=arms, order=places, repeats=repeats), TIME_SECONDS)
    except Lost as lost:
        raise TimingFailed(0, Failure(lost.status, lost.reason, case)) from lost
    return [
        [value for place, value in zip(order, seconds, strict=True) if place == arm]
        for arm in range(len(arms))
    ]


def check_left(track: Track, benches: Sequence[Bench], case: Case) -> None:
    """Check what the last replay of the candidates wrote: elements of every call, and a random call against float64."""
    chosen = benches[0].rng.randrange(track.size)
    # All arms were given the same inputs: one answer of the reference judges all of them.
    answers = answers_to(benches[0], track.arena, chosen)
    for place, bench in enumerate(benches):
        if not bench.is_planned:
            continue  # a baseline returns its outputs; nobody copies them
        first = track.homes[place] * track.size
        looked, left = track.arena.sampled(first, track.size, SAMPLES)
        if left:
            reason = f"{left} of {looked} random output elements never written in timed calls"
            raise TimingFailed(place, Failure(Status.NOT_WRITTEN, reason, case))
        if failure := check_answers(bench, track.arena, first + chosen, answers):
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
        order = Time(arms=(alone,), order=(0,) * 2 * ROUNDS, repeats=LEAST_LAUNCHES)
        warm = median(track.runner.time(order, TIME_SECONDS)) / LEAST_LAUNCHES * 1e6
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

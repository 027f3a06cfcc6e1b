"""The ways of running a model side by side: eager, captured, captured with marks, compiled; all timed in one loop."""

import functools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean, quantiles
from typing import Any

import torch

from kernelwright.model.arguments import Arguments, InputSet
from kernelwright.model.compiled_account import Block
from kernelwright.model.inductor import Compiler, kernel_times, profiled
from kernelwright.model.load import Loaded
from kernelwright.model.marks import Key, StampCost, Watch, busy_us

WARM_UP, FEWEST, MOST = 3, 12, 1000
ENOUGH = 0.01
"""Standard error of the account at which no more rounds are made."""
VALUES = 4
"""Different inputs of one set."""
PROFILED_CALLS, FEWEST_BLOCKS, BLOCKS = 2, 8, 24


@dataclass
class Arms:
    """The ways of running one model."""

    loaded: Loaded
    watch: Watch
    captured: Callable[..., Any]
    compiled: Callable[..., Any] | None
    compiler: Compiler
    compile_s: float = 0.0
    compile_error: str = ""

    @property
    def on_gpu(self) -> bool:
        """Tell whether the model runs on a GPU."""
        return self.loaded.device.type == "cuda"

    def timed(self, name: str, given: Arguments) -> float:
        """Return the microseconds of one call, until its last kernel has ended."""
        call = {"eager": self.loaded.module, "compiled": self.compiled}.get(name, self.captured)
        assert call is not None
        self.watch.form = "stamped" if name == "stamped" else "plain"
        self.wait()
        started = time.perf_counter_ns()
        given.call(call)
        self.wait()
        elapsed = time.perf_counter_ns() - started
        self.watch.form = "plain"
        return elapsed / 1e3

    def wait(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.loaded.device)


@dataclass
class SetSamples:
    """What was measured of one set."""

    one: InputSet
    seconds: float
    """Longest time to spend, once there are the fewest rounds."""
    walls: dict[str, list[float]] = field(default_factory=dict)
    """Per way of running, the quicker of the two calls of each round: the other was rather disturbed than this one."""
    times: list[dict[Key, float]] = field(default_factory=list)
    """Per round the time of every operation, its stamp included."""
    runs: dict[int, float] = field(default_factory=dict)
    """How often each graph runs in a call, over all inputs: values may decide the way through the model."""
    stamps: float = 0.0
    """Stamps in a call."""
    stamp_cost: StampCost = field(default_factory=StampCost)
    """What each costs, measured beside every round."""
    eager_busy_us: float = 0.0
    """How long a GPU works in an eager call."""

    @property
    def accounted(self) -> list[float]:
        """Return, per round, what the marks account for: operations, and what lies outside them."""
        cost = self.stamps * self.stamp_cost.us if self.stamps else 0.0
        return [wall - cost for wall in self.walls.get("stamped", self.walls["captured"])]

    def ratios(self) -> list[float]:
        """Return, per round, what is accounted for over what was measured without marks."""
        return [a / b for a, b in zip(self.accounted, self.walls["captured"], strict=True)]

    def is_enough(self, spent_s: float) -> bool:
        """Tell whether more rounds would tell no more."""
        rounds = len(self.walls["captured"])
        if rounds < FEWEST:
            return False
        low, _, high = quantiles(self.ratios(), n=4)
        error = 0.93 * (high - low) / rounds**0.5  # of a median, from the quartiles
        return error < ENOUGH or spent_s > self.seconds or rounds >= MOST


def sample(arms: Arms, one: InputSet, seconds: float, seed: int = 0) -> SetSamples:
    """Return the times of one set: every way of running it in random order, there and back, round by round."""
    rng, values = random.Random(seed), [one.make(number) for number in range(VALUES)]
    names = ["eager", "captured", "stamped"] + ["compiled"] * (arms.compiled is not None)
    for number in range(WARM_UP):
        for name in names:
            arms.timed(name, values[number % VALUES])
    arms.watch.taken()
    for given in values:
        arms.timed("stamped", given)
    runs = {number: count / VALUES for number, count in arms.watch.taken()[1].items()}
    if arms.on_gpu:
        names.remove("stamped")
    found = SetSamples(one, seconds, {name: [] for name in names}, runs=runs)
    if not arms.on_gpu:
        found.stamps = sum(count * len(arms.watch.names[number]) for number, count in runs.items())
    started = time.perf_counter()
    while not found.is_enough(time.perf_counter() - started):
        _round(arms, found, values[len(found.walls["eager"]) % VALUES], rng.sample(names, len(names)))
    return found


def _round(arms: Arms, found: SetSamples, given: Arguments, order: Sequence[str]) -> None:
    """Add one round: every way of running there and back."""
    quickest: dict[str, tuple[float, dict[Key, float]]] = {}
    for name in (*order, *reversed(order)):
        wall = arms.timed(name, given)
        times = arms.watch.taken()[0] if name == "stamped" else {}
        if name not in quickest or wall < quickest[name][0]:
            quickest[name] = (wall, times)
    for name, (wall, _) in quickest.items():
        found.walls[name].append(wall)
    if "stamped" in quickest:
        found.times.append(quickest["stamped"][1])
        found.stamp_cost.look()


def blocks(arms: Arms, one: InputSet, seconds: float) -> list[Block]:
    """Return profiles of the compiled model, each beside calls without a profiler."""
    found: list[Block] = []
    call = arms.compiled
    assert call is not None
    values, started = [one.make(number) for number in range(VALUES)], time.perf_counter()
    while len(found) < FEWEST_BLOCKS or (len(found) < BLOCKS and time.perf_counter() - started < seconds):
        given = values[len(found) % VALUES]
        plain = mean(arms.timed("compiled", given) for _ in range(PROFILED_CALLS))
        # The first call under a profiler is not like the others.
        events = profiled(functools.partial(given.call, call), 1 + PROFILED_CALLS, arms.on_gpu)
        seen, calls = kernel_times(events, arms.on_gpu), 1 + PROFILED_CALLS
        found.append(Block(seen[len(seen) // calls :], PROFILED_CALLS, plain, busy_us(events) / calls))
    return found

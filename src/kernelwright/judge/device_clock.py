"""The launcher's clock on a GPU: arms captured in graphs over rotated buffers, replayed in random order, cold L2.

Tier-A candidates bring no host code into the timed process, so two of them and the trusted baselines share one
launcher and one set of buffers. What the last replay left in the buffers is checked like any other output.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution
from kernelwright.core.device import Device
from kernelwright.core.messages import DeviceJob, Time, TimedArm
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import DeviceRunner, Lost
from kernelwright.judge.clock import TimingFailed
from kernelwright.judge.execution import LOAD_SECONDS, collect, compile_cases
from kernelwright.judge.stages import Bench, Failure, check_call

ROUNDS = 25
LEAST_CALLS, MOST_CALLS = 2, 64
LEAST_LAUNCHES = 32
"""Calls in one graph, repeats included: the launch of the graph itself must drown in them."""
BASES = 2
L2_ROTATIONS = 4
"""Buffers of all calls of a graph together exceed the L2 cache this many times, so every call finds it cold."""
UNKNOWN_L2_BYTES = 128 << 20
TIME_SECONDS = 90.0
THREADS = 4


def calls_for(case: Case, device: Device) -> int:
    """Return how many calls a graph holds: enough buffers to leave nothing of a call in the cache for the next."""
    footprint = sum(spec.nbytes for spec in (*case.inputs, *case.outputs))
    wanted = L2_ROTATIONS * (device.cache_bytes or UNKNOWN_L2_BYTES)
    return max(LEAST_CALLS, min(MOST_CALLS, math.ceil(wanted / max(footprint, 1))))


def plan_arm(name: str, bench: Bench, case: Case) -> TimedArm:
    """Return the arm of a tier-A candidate on one case."""
    device = bench.problem.device
    (plan,) = compile_cases(bench.candidate, [case], device, bench.builds)
    folder = collect(bench.candidate, [case], device, bench.builds, bench.home)
    return TimedArm(name=name, kind="plan", plan=plan, folder=folder)


class Bout(NamedTuple):
    """A case and the arms to be timed on it."""

    case: Case
    arms: tuple[TimedArm, ...]


def time_bouts(bench: Bench, bouts: Sequence[Bout], rounds: int = ROUNDS) -> Iterator[dict[str, list[float]]]:
    """Yield, bout by bout, microseconds per call of every arm, one number per replay; outputs left are checked.

    One launcher serves all bouts: importing torch and creating a context costs more than timing.
    """
    device = bench.problem.device
    counts = [calls_for(bout.case, device) for bout in bouts]
    owners = [index for index, count in enumerate(counts) for _ in range(count)]
    with Arena([bout.case for bout in bouts], owners, bench.rng) as arena:
        arena.poison_outputs()
        job = DeviceJob(
            index=device.index, folder="", cases=arena.cases, calls=arena.calls, plans=(None,) * len(bouts)
        )
        with DeviceRunner(job, arena, bench.home, THREADS) as runner:
            runner.ready(LOAD_SECONDS)
            for index, (bout, count) in enumerate(zip(bouts, counts, strict=True)):
                first = owners.index(index)
                _fill(arena, range(first, first + count), bout.case, bench.rng)
                repeats = math.ceil(LEAST_LAUNCHES / count)
                order = Time(
                    case=index, arms=bout.arms, rounds=rounds, repeats=repeats, seed=bench.rng.getrandbits(31)
                )
                seconds = runner.time(order, TIME_SECONDS)
                if any(arm.kind == "plan" for arm in bout.arms):
                    for number in {first, first + count - 1}:
                        if failure := check_call(bench, arena, number):
                            raise TimingFailed("candidate", failure)
                launches = count * repeats
                yield {
                    arm.name: [value / launches * 1e6 for value in row]
                    for arm, row in zip(bout.arms, seconds, strict=True)
                }


def _fill(arena: Arena, numbers: Iterable[int], case: Case, rng: random.Random) -> None:
    """Give every call inputs nobody has seen."""
    op = plugins.load("ops", case.op)
    bases = [op.make_inputs(case, Distribution.SIGNED, rng.getrandbits(62)) for _ in range(BASES)]
    for number in numbers:
        arena.write_inputs(number, _varied(bases[number % BASES], rng))


def _varied(base: dict[str, torch.Tensor], rng: random.Random) -> dict[str, torch.Tensor]:
    """Return inputs nobody has seen, cheaply: a base scaled (floats) or rolled (integers) at random."""
    return {
        name: tensor * rng.uniform(0.5, 2.0)
        if tensor.is_floating_point()
        else tensor.roll(rng.randrange(1, 1000))
        for name, tensor in base.items()
    }


def time_alone(bench: Bench, case: Case) -> list[float]:
    """Return microseconds per call of one accepted tier-A candidate."""
    try:
        (times,) = time_bouts(bench, [Bout(case, (plan_arm("candidate", bench, case),))])
        return times["candidate"]
    except Lost as lost:
        raise TimingFailed("candidate", Failure(lost.status, lost.reason, case)) from lost

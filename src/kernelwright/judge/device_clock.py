"""The launcher's clock on a GPU: arms captured in graphs over rotated buffers, replayed in random order, cold L2.

Tier-A candidates bring no host code into the timed process, so two of them and the trusted baselines share one
launcher and one set of buffers. What the last replay left in the buffers is checked like any other output.
"""

import math
from collections.abc import Sequence

from kernelwright.core import plugins
from kernelwright.core.case import Case, Distribution
from kernelwright.core.device import Device
from kernelwright.core.messages import DeviceJob, TimedArm
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import DeviceRunner, Lost
from kernelwright.judge.clock import TimingFailed
from kernelwright.judge.execution import LOAD_SECONDS, collect, compile_cases
from kernelwright.judge.stages import Bench, Failure, check_call

ROUNDS = 25
LEAST_CALLS, MOST_CALLS = 8, 64
L2_ROTATIONS = 4
"""Buffers of all calls of a graph together exceed the L2 cache this many times, so every call finds it cold."""
UNKNOWN_L2_BYTES = 128 << 20
TIME_SECONDS = 300.0
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


def time_arms(
    bench: Bench, case: Case, arms: Sequence[TimedArm], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Return microseconds per call of every arm, one number per replay; outputs left behind are checked."""
    device, count = bench.problem.device, calls_for(case, bench.problem.device)
    op = plugins.load("ops", case.op)
    with Arena([case], [0] * count, bench.rng) as arena:
        for number in range(count):
            arena.write_inputs(number, op.make_inputs(case, Distribution.SIGNED, bench.rng.getrandbits(62)))
        arena.poison_outputs()
        job = DeviceJob(index=device.index, folder="", cases=(case,), calls=arena.calls, plans=(None,))
        with DeviceRunner(job, arena, bench.home, THREADS) as runner:
            runner.ready(LOAD_SECONDS)
            seconds = runner.time(arms, rounds, TIME_SECONDS)
        if any(arm.kind == "plan" for arm in arms):
            for number in {0, count // 2, count - 1}:
                if failure := check_call(bench, arena, number):
                    raise TimingFailed("candidate", failure)
    return {arm.name: [value / count * 1e6 for value in row] for arm, row in zip(arms, seconds, strict=True)}


def time_alone(bench: Bench, case: Case) -> list[float]:
    """Return microseconds per call of one accepted tier-A candidate."""
    try:
        return time_arms(bench, case, [plan_arm("candidate", bench, case)])["candidate"]
    except Lost as lost:
        raise TimingFailed("candidate", Failure(lost.status, lost.reason, case)) from lost

"""Kernels whose single calls take long: timed with fewer calls, by the same clock."""

from dataclasses import replace
from statistics import median

from kernelwright.core.case import DType
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import REQUIRED_STAGES, Profile, Status
from kernelwright.hardware.detect import cpu_device
from kernelwright.judge.clock import time_alone
from kernelwright.judge.evaluate import Judge
from kernelwright.judge.heat import FEWEST_CALLS, USUAL_CALLS, Heats
from kernelwright.judge.stages import run_stage
from kernelwright.ops import rmsnorm
from tests.cpu.conftest import cpp
from tests.cpu.test_stages import HONEST

CASE = rmsnorm.case({"rows": 16, "cols": 64}, DType.FP32)
PROBLEM = Problem(op="rmsnorm", cases=(CASE,), device=cpu_device())
SLEEPING = HONEST.replace("#include <cmath>", "#include <cmath>\n#include <time.h>").replace(
    "double sum = 0;",
    "if (row == 0) { const timespec t = {0, 60000000}; nanosleep(&t, nullptr); } double sum = 0;",
)


def test_a_kernel_of_long_calls_is_timed_with_few_of_them(room: Judge) -> None:
    assert SLEEPING.count("nanosleep") == 1
    # No kernel may sleep; this one does, to be as slow on every machine.
    bench = replace(room.bench(PROBLEM, cpp(SLEEPING)), guards_off=True)
    for stage in REQUIRED_STAGES[Profile.QUICK]:
        assert run_stage(stage, bench)[1] is None
    with Heats() as heats:
        assert heats.size(bench, CASE) == FEWEST_CALLS
    assert median(time_alone(bench, CASE, 2)) >= 60_000, "a call sleeps 60 ms"


def test_a_kernel_of_short_calls_is_timed_with_as_many_as_make_a_batch(room: Judge) -> None:
    assert room.evaluate(PROBLEM, cpp(HONEST), Profile.QUICK).status is Status.ACCEPTED
    with Heats() as heats:
        assert heats.size(room.bench(PROBLEM, cpp(HONEST)), CASE) > USUAL_CALLS

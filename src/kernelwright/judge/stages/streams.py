"""The stage of streams: a call belongs to the stream it is made on, and shares nothing with calls on another.

The trusted launcher chooses the streams of a plan, so what can break there is memory that all launches of a kernel
share. Host code of a candidate's own can also name a stream, or wait for one.
"""

from kernelwright.core.case import Case, Distribution
from kernelwright.core.messages.runner import Overlap
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import Lost, Runner
from kernelwright.judge.stages.bench import (
    CALL_SECONDS,
    Bench,
    Failure,
    Skipped,
    Told,
    input_elements,
)
from kernelwright.judge.stages.checks import check_call, runner_on

LANES, CALLS = 2, 6
"""Streams at once, and calls on each of them."""
ROUNDS = 3
BLOCKED_MS = (50, 200, 1000)
"""How long the legacy default stream is blocked; longer in each further try, on other streams of the pool.

Two streams may share a queue of the hardware, and a host may be held up: once is no proof."""


def streams(bench: Bench) -> Told:
    """Make calls on two streams at once, with other inputs each, while the legacy default stream is blocked."""
    if bench.is_cpu:
        return 0, Skipped("a CPU has no streams")
    case = stream_case(bench)
    with bench.arena([case], [0] * (LANES * (CALLS + 1))) as arena:
        try:
            with runner_on(bench, arena) as runner:
                for done in range(ROUNDS):
                    _refill(bench, arena)
                    if failure := _round(bench, runner, arena):
                        return (done + 1) * LANES * CALLS, failure
        except Lost as lost:
            return LANES * CALLS, Failure(lost.status, lost.reason, case)
    return ROUNDS * LANES * CALLS, None


def stream_case(bench: Bench) -> Case:
    """Return the largest of the small cases in the problem's own type: many launches of it fit on a GPU at once."""
    small = bench.small_cases()
    own = [case for case in small if case.dtype is bench.problem.cases[0].dtype]
    return max(own or small, key=input_elements)


def _refill(bench: Bench, arena: Arena) -> None:
    """Give every call inputs of its own: an answer that belongs to another call is wrong."""
    for number in range(len(arena.calls)):
        inputs = bench.op.make_inputs(arena.cases[0], Distribution.SIGNED, bench.seed)
        arena.write_inputs(number, inputs)
    arena.poison_outputs()


def _round(bench: Bench, runner: Runner, arena: Arena) -> Failure | None:
    lanes = tuple(tuple(range(lane * CALLS, (lane + 1) * CALLS)) for lane in range(LANES))
    warm = tuple(range(LANES * CALLS, LANES * (CALLS + 1)))
    for blocked_ms in BLOCKED_MS:
        try:
            runner.carry_out(Overlap(warm=warm, lanes=lanes, blocked_ms=blocked_ms), CALL_SECONDS)
            break
        except Lost as lost:
            if lost.status is not Status.WRONG_STREAM or blocked_ms == BLOCKED_MS[-1]:
                raise
            _refill(bench, arena)
    for number in (call for lane in lanes for call in lane):
        if failure := check_call(bench, arena, number, Distribution.SIGNED):
            return Failure(failure.status, f"on two streams at once: {failure.reason}", failure.case)
    return None

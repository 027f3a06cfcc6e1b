"""The stage of graphs: a call that is captured once and replayed must follow the inputs it finds at each replay.

A plan is always captured: timing rests on it. Host code of a candidate's own may be impossible to capture, which is
recorded and no fault; if it is captured, it must be right.
"""

from kernelwright.core.case import Case, Distribution
from kernelwright.core.messages.runner import Capture, Replay
from kernelwright.core.verdict import Status
from kernelwright.judge.children import Lost
from kernelwright.judge.stages.bench import CALL_SECONDS, Bench, Failure, Skipped, Told
from kernelwright.judge.stages.checks import check_call, runner_on
from kernelwright.judge.stages.streams import stream_case

REPLAYS = 5


def graph_capture(bench: Bench) -> Told:
    """Capture one call of a small case and of the problem's own, and replay each with other inputs."""
    if bench.is_cpu:
        return 0, Skipped("a CPU has no graphs")
    checked = 0
    cases = {case.hash: case for case in (stream_case(bench), bench.probed_case())}
    for case in cases.values():
        count, told = _replayed(bench, case)
        checked += count
        if told:
            return checked, told
    return checked, None


def _replayed(bench: Bench, case: Case) -> Told:
    with bench.arena([case], [0]) as arena:
        arena.write_inputs(0, bench.op.make_inputs(case, Distribution.SIGNED, bench.seed))
        arena.poison_outputs()
        replay = 0
        try:
            with runner_on(bench, arena) as runner:
                try:
                    runner.carry_out(Capture(call=0), CALL_SECONDS)
                except Lost as lost:
                    if lost.status is not Status.UNSUPPORTED or bench.is_planned:
                        raise
                    return 0, Skipped(lost.reason)
                for replay in range(REPLAYS):
                    arena.write_inputs(0, bench.op.make_inputs(case, Distribution.SIGNED, bench.seed))
                    arena.poison_outputs()
                    runner.carry_out(Replay(is_aside=replay % 2 == 1), CALL_SECONDS)
                    if failure := check_call(bench, arena, 0, Distribution.SIGNED):
                        reason = f"replay {replay + 1} of a captured call: {failure.reason}"
                        return replay + 1, Failure(failure.status, reason, case)
        except Lost as lost:
            return replay + 1, Failure(lost.status, lost.reason, case)
    return REPLAYS, None

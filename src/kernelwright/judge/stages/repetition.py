"""Stages that repeat themselves: the same inputs must give the same bits, whatever was in memory or happened before."""

from collections.abc import Sequence

import torch

from kernelwright.core.case import Case, Distribution
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import Lost, Runner
from kernelwright.judge.execution import left_out
from kernelwright.judge.oracle import Answer
from kernelwright.judge.stages.bench import (
    CALL_SECONDS,
    PROBED_ELEMENTS,
    SMOKE_ELEMENTS,
    Bench,
    Failure,
    Found,
    input_elements,
)
from kernelwright.judge.stages.checks import Inputs, answers_to, check_written, runner_on
from kernelwright.judge.stages.reordering import apart, declares_reordering

PROCESSES, BIG_PROCESSES = 3, 2
REPEATS, BIG_REPEATS = 8, 3
"""Runs in one process, over memory filled differently each time; fewer of a case that takes long."""
LARGE = 0x7B
"""Bytes of this make numbers near the top of the range of every float type."""
COMPANIONS = 3
MIXED_CALLS, MIXED_ROUNDS, FEW_ROUNDS = 12, 25, 2
"""Calls of other shapes between two looks, in batches: three hundred; fewer where each takes long."""


def _own_case(bench: Bench) -> Case | Failure:
    case = min(bench.problem.cases, key=input_elements)
    if reason := left_out(bench.candidate, case, bench.problem.device):
        return Failure(Status.UNSUPPORTED, f"correctness only: {reason}", case)
    return case


def _companions(bench: Bench, case: Case) -> list[Case]:
    """Return small cases of other sizes and types that the same artefact serves."""
    drawn = [*bench.small_cases(), *(bench.hidden_case(SMOKE_ELEMENTS) for _ in range(COMPANIONS))]
    bench.rng.shuffle(drawn)
    key = bench.build_key(case)
    fitting = [one for one in drawn if bench.build_key(one) == key and not bench.is_left_out(one)]
    return fitting[:COMPANIONS] or [case]


def determinism(bench: Bench) -> Found:
    """Run the same inputs in fresh processes, in another order each, over memory filled differently each time."""
    case = _own_case(bench)
    if isinstance(case, Failure):
        return 0, case
    is_big = input_elements(case) > PROBED_ELEMENTS[bench.is_cpu]
    cases = [case] if is_big else [case, *_companions(bench, case)]
    inputs = [bench.op.make_inputs(one, Distribution.SIGNED, bench.seed) for one in cases]
    seen: list[torch.Tensor] = []
    answers: list[Sequence[Answer] | None] = [None] * len(cases)
    checked = 0
    for _ in range(BIG_PROCESSES if is_big else PROCESSES):
        order = list(range(len(cases)))
        bench.rng.shuffle(order)
        with bench.arena([cases[index] for index in order], range(len(order))) as arena:
            for number, index in enumerate(order):
                arena.write_inputs(number, inputs[index])
            if not seen and declares_reordering(bench.candidate.source):
                answers = [answers_to(bench, arena, order.index(index)) for index in range(len(cases))]
            count, failure = _repeat(bench, arena, order, seen, answers)
            checked += count
            if failure:
                return checked, failure
    return checked, None


def _repeat(
    bench: Bench,
    arena: Arena,
    order: list[int],
    seen: list[torch.Tensor],
    answers: Sequence[Sequence[Answer] | None],
) -> Found:
    """Run all calls again and again in one process and compare with what was seen first."""
    runs = 0
    try:
        with runner_on(bench, arena) as runner:
            for repeat in range(REPEATS if len(order) > 1 else BIG_REPEATS):
                if repeat % 3 == 0:
                    arena.poison_outputs()
                else:
                    arena.prefill_outputs(LARGE if repeat % 3 == 1 else None, bench.rng)
                # In another order each time, and one of them twice: a candidate that counts calls loses its count.
                shuffled = bench.rng.sample(range(len(order)), len(order))
                for number in (*shuffled, bench.rng.choice(shuffled)):
                    runner.run(number, 1, CALL_SECONDS)
                    runner.collect(CALL_SECONDS)
                    runs += 1
                if not seen:
                    seen += [arena.output_bytes(order.index(index)) for index in range(len(order))]
                for number, index in enumerate(order):
                    if difference := apart(arena, number, seen[index], answers[index]):
                        reason = f"repeated runs on the same inputs differ: {difference}"
                        return runs, Failure(Status.NOT_DETERMINISTIC, reason, arena.cases[number])
    except Lost as lost:
        return runs, Failure(lost.status, lost.reason, arena.cases[order.index(0)])
    return runs, None


class _Look:
    """What is looked at in the old process: a call, the inputs it has then, and the bits a fresh process gave."""

    def __init__(self, what: str, case: Case, inputs: Inputs) -> None:
        self.what, self.case, self.inputs = what, case, inputs
        self.bits = torch.empty(0, dtype=torch.uint8)
        self.answers: Sequence[Answer] | None = None


def state(bench: Bench) -> Found:
    """Compare a fresh process with one that has hundreds of mixed calls behind it."""
    case = bench.probed_case()
    if bench.is_left_out(case):
        return 0, Failure(Status.UNSUPPORTED, "correctness only: no case can be run here", case)
    first, second = (bench.op.make_inputs(case, Distribution.SIGNED, bench.seed) for _ in range(2))
    others = [
        case.model_copy(update={"scalars": {**case.scalars, **change}})
        for change in bench.op.other_scalars(case)
    ]
    looks = [
        _Look("after hundreds of calls", case, first),
        _Look("at another address", case, first),
        _Look("with other content at the same address", case, second),
    ]
    key = bench.build_key(case)
    looks += [
        _Look(f"with other scalars under the same pointers ({other.scalars})", other, second)
        for other in others
        if bench.build_key(other) == key
    ]
    looks.append(_Look("back to the first content and scalars", case, first))
    try:
        _fresh(bench, looks)
        return _old(bench, case, looks)
    except Lost as lost:
        return len(looks), Failure(lost.status, lost.reason, case)


def _fresh(bench: Bench, looks: list[_Look]) -> None:
    """Note what a fresh process answers, every look at an address of its own."""
    with bench.arena([look.case for look in looks], range(len(looks))) as arena:
        for number, look in enumerate(looks):
            arena.write_inputs(number, look.inputs)
        arena.poison_outputs()
        with runner_on(bench, arena) as runner:
            runner.run(0, len(looks), CALL_SECONDS)
            runner.collect(CALL_SECONDS)
        for number, look in enumerate(looks):
            look.bits = arena.output_bytes(number)
            if declares_reordering(bench.candidate.source):
                look.answers = answers_to(bench, arena, number)


def _old(bench: Bench, case: Case, looks: list[_Look]) -> Found:
    """Repeat the looks in one process between batches of mixed calls."""
    companions = _companions(bench, case)
    cases = [case, *companions]
    mixed = [1 + number % len(companions) for number in range(MIXED_CALLS)]
    with bench.arena(cases, [0, *mixed, 0]) as arena:
        numbers = []
        for look in looks:
            if look.case is not case:
                numbers.append(arena.call_at(0, look.case))
            else:
                numbers.append(1 + MIXED_CALLS if "another address" in look.what else 0)
        for number, index in enumerate(mixed, start=1):
            arena.write_inputs(number, bench.op.make_inputs(cases[index], Distribution.SIGNED, bench.seed))
        arena.write_inputs(0, looks[0].inputs)
        arena.write_inputs(1 + MIXED_CALLS, looks[1].inputs)
        arena.poison_outputs()
        with runner_on(bench, arena) as runner:
            _mix(runner, FEW_ROUNDS if bench.is_interpreted or bench.is_heavy else MIXED_ROUNDS)
            for done, (look, number) in enumerate(zip(looks, numbers, strict=True), start=1):
                _mix(runner, 1)
                runner.run(
                    0, 1, CALL_SECONDS
                )  # the last thing it remembers is the old content at this address
                arena.write_inputs(number, look.inputs)
                arena.poison_outputs()
                runner.run(number, 1, CALL_SECONDS)
                runner.collect(CALL_SECONDS)
                if failure := _compare(arena, number, look):
                    return done, failure
    return len(looks), None


def _mix(runner: Runner, rounds: int) -> None:
    """Run the case itself, calls of other shapes, and the case again, back and forth."""
    for _ in range(rounds):
        runner.run(0, 2 + MIXED_CALLS, CALL_SECONDS)
        runner.collect(CALL_SECONDS)


def _compare(arena: Arena, number: int, look: _Look) -> Failure | None:
    for spec in look.case.outputs:
        if failure := check_written(arena, number, spec):
            return Failure(Status.STATEFUL, f"{look.what}: {failure.reason}", look.case)
    if difference := apart(arena, number, look.bits, look.answers):
        reason = f"{look.what} the answer is not that of a fresh process: {difference}"
        return Failure(Status.STATEFUL, reason, look.case)
    return None

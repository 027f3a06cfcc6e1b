"""The stages: which cases each runs, and how one call becomes a passed or failed check."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.case import Case, Distribution, DType
from kernelwright.core.device import DeviceKind
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Stage, StageResult, Status
from kernelwright.judge import oracle
from kernelwright.judge.arena import Arena
from kernelwright.judge.builds import Builds
from kernelwright.judge.children import Lost, Runner, Service
from kernelwright.judge.error_budget import check_output
from kernelwright.judge.execution import compile_cases, launches_plans, open_runner

CALL_SECONDS = 20.0
SMOKE_ELEMENTS = 1 << 16
"""Cases up to this many input elements count as small."""
SWEEP_ELEMENTS = 1 << 22
"""Board-sized public cases beyond this are left to GPUs: float64 on them takes a CPU minutes."""
GPU_SWEEP_ELEMENTS = 1 << 30


NARROW_MISS, POOLED_SEEDS = 2.0, 8
"""An error up to this far beyond its limit is looked at again over this many seeds."""


@dataclass(frozen=True)
class Bench:
    """Everything a stage needs."""

    problem: Problem
    candidate: Candidate
    builds: Builds
    nursery: Service
    reference: Service
    home: Path
    rng: random.Random
    """Seeded from the operating system for every evaluation: hidden shapes and inputs cannot be foreseen."""
    hidden_shapes: int
    progress: Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """Why a stage failed."""

    status: Status
    reason: str
    case: Case | None = None


def input_elements(case: Case) -> int:
    """Return how many elements the inputs of a case have."""
    return sum(spec.numel for spec in case.inputs)


def run_stage(stage: Stage, bench: Bench) -> tuple[StageResult, Failure | None]:
    """Run one stage and return its result, with the failure if there was one."""
    started = time.perf_counter()
    checked, failure = STAGES[stage](bench)
    result = StageResult(
        stage=stage,
        passed=failure is None,
        seconds=time.perf_counter() - started,
        checked=checked,
        reason=failure.reason if failure else "",
        failing_case=failure.case.label if failure and failure.case else None,
    )
    return result, failure


def _guards(bench: Bench) -> tuple[int, Failure | None]:
    candidate = bench.candidate
    if candidate.origin is Origin.AUTHOR and candidate.backend in ("eager", "compiled"):
        return 1, Failure(
            Status.DELEGATION, f"backend {candidate.backend!r} has no kernel of the candidate's own"
        )
    refusal = plugins.load("backends", candidate.backend).check(candidate.source)
    return 1, Failure(Status.REFUSED, refusal) if refusal else None


def _build(bench: Bench) -> tuple[int, Failure | None]:
    if launches_plans(bench.candidate, bench.problem.device):
        try:
            compile_cases(bench.candidate, bench.problem.cases, bench.problem.device, bench.builds)
        except Lost as lost:
            return len(bench.problem.cases), Failure(lost.status, lost.reason)
        return len(bench.problem.cases), None
    for built, choice in enumerate(bench.candidate.choices, start=1):
        result, _ = bench.builds.get(bench.candidate, choice.values)
        if result.status is not Status.ACCEPTED:
            return built, Failure(result.status, result.log.strip() or "the build failed")
    return len(bench.candidate.choices), None


def _smoke(bench: Bench) -> tuple[int, Failure | None]:
    op = plugins.load("ops", bench.problem.op)
    small = [case for case in op.public_cases() if input_elements(case) <= SMOKE_ELEMENTS]
    first = {case.dtype: case for case in sorted(small, key=input_elements, reverse=True)}
    served = _served_dtypes(bench.problem, op.DTYPES)
    return check_cases(
        bench, [(case, Distribution.SIGNED) for case in first.values() if case.dtype in served]
    )


def _served_dtypes(problem: Problem, dtypes: Sequence[DType]) -> tuple[DType, ...]:
    """Return the types a candidate must serve: those of the op, when the reference is the op's own."""
    return tuple(dtypes) if problem.reference is None else tuple({case.dtype for case in problem.cases})


def _shape_sweep(bench: Bench) -> tuple[int, Failure | None]:
    op = plugins.load("ops", bench.problem.op)
    most = SWEEP_ELEMENTS if bench.problem.device.kind is DeviceKind.CPU else GPU_SWEEP_ELEMENTS
    public = [case for case in op.public_cases() if input_elements(case) <= most]
    hidden = [op.sample_case(bench.rng) for _ in range(bench.hidden_shapes)]
    kinds = (Distribution.SIGNED, Distribution.SCALED)
    own = [(case, kind) for case in bench.problem.cases for kind in kinds]
    return check_cases(bench, own + [(case, bench.rng.choice(kinds)) for case in (*public, *hidden)])


def _stability(bench: Bench) -> tuple[int, Failure | None]:
    op = plugins.load("ops", bench.problem.op)
    small = [case for case in op.public_cases() if input_elements(case) <= SMOKE_ELEMENTS]
    per_dtype = [bench.rng.choice([case for case in small if case.dtype is dtype]) for dtype in op.DTYPES]
    hard = (Distribution.OFFSET, Distribution.HEAVY_TAILED, Distribution.SPARSE, Distribution.INTEGER)
    return check_cases(bench, [(case, kind) for case in per_dtype for kind in hard])


def _edge_cases(bench: Bench) -> tuple[int, Failure | None]:
    op = plugins.load("ops", bench.problem.op)
    return check_cases(bench, [(case, Distribution.SIGNED) for case in op.edge_cases()])


def _determinism(bench: Bench) -> tuple[int, Failure | None]:
    """Run the same inputs in two fresh processes, three times each, over differently poisoned memory."""
    case = min(bench.problem.cases, key=input_elements)
    op = plugins.load("ops", bench.problem.op)
    inputs = op.make_inputs(case, Distribution.SIGNED, bench.rng.getrandbits(62))
    seen: list[torch.Tensor] = []
    try:
        for _ in range(2):
            with Arena([case], [0], bench.rng) as arena:
                arena.write_inputs(0, inputs)
                with _runner(bench, arena) as runner:
                    for _ in range(3):
                        arena.poison_outputs()
                        runner.run(0, 1, CALL_SECONDS)
                        runner.collect(CALL_SECONDS)
                        seen.append(arena.output_bytes(0))
    except Lost as lost:
        return len(seen), Failure(lost.status, lost.reason, case)
    if any(not torch.equal(seen[0], other) for other in seen[1:]):
        return len(seen), Failure(Status.NOT_DETERMINISTIC, "repeated runs on the same inputs differ", case)
    return len(seen), None


STAGES: dict[Stage, Callable[[Bench], tuple[int, Failure | None]]] = {
    Stage.GUARDS: _guards,
    Stage.BUILD: _build,
    Stage.SMOKE: _smoke,
    Stage.SHAPE_SWEEP: _shape_sweep,
    Stage.STABILITY: _stability,
    Stage.EDGE_CASES: _edge_cases,
    Stage.DETERMINISM: _determinism,
}


def _runner(bench: Bench, arena: Arena) -> Runner:
    return open_runner(bench.candidate, arena, bench.problem.device, bench.builds, bench.nursery, bench.home)


def check_cases(bench: Bench, wanted: Sequence[tuple[Case, Distribution]]) -> tuple[int, Failure | None]:
    """Run cases, smallest first, in one fresh process per parameter choice; stop at the first failure."""
    ordered = sorted(wanted, key=lambda pair: input_elements(pair[0]))
    groups: dict[str, list[tuple[Case, Distribution]]] = {}
    together = launches_plans(bench.candidate, bench.problem.device)
    for case, kind in ordered:
        key = "" if together else bench.builds.key(bench.candidate, bench.candidate.values_for(case.hash))
        groups.setdefault(key, []).append((case, kind))
    checked = 0
    for group in groups.values():
        count, failure = _check_group(bench, group)
        checked += count
        if failure:
            return checked, failure
    return checked, None


def _check_group(bench: Bench, group: Sequence[tuple[Case, Distribution]]) -> tuple[int, Failure | None]:
    op = plugins.load("ops", bench.problem.op)
    cases = [case for case, _ in group]
    with Arena(cases, range(len(cases)), bench.rng) as arena:
        for number, (case, kind) in enumerate(group):
            arena.write_inputs(number, op.make_inputs(case, kind, bench.rng.getrandbits(62)))
        arena.poison_outputs()
        before = arena.input_digest()
        number = 0
        try:
            with _runner(bench, arena) as runner:
                for number in range(len(cases)):
                    runner.run(number, 1, CALL_SECONDS)
                    runner.collect(CALL_SECONDS)
                    if failure := check_call(bench, arena, number, group[number][1]):
                        return number + 1, failure
        except Lost as lost:
            return number + 1, Failure(lost.status, lost.reason, cases[number])
        if arena.input_digest() != before:
            return len(cases), Failure(Status.INPUT_CHANGED, "an input was modified")
    return len(cases), None


def check_call(bench: Bench, arena: Arena, number: int, kind: Distribution | None = None) -> Failure | None:
    """Judge the outputs one call left in the arena.

    Given the distribution of its inputs, a narrow miss gets a second look over more seeds; a timed call never does.
    """
    case = arena.cases[arena.calls[number].case]
    for spec, answer in zip(case.outputs, _answers(bench, arena, number), strict=True):
        if arena.canary_broken(number, spec):
            return Failure(Status.OUT_OF_BOUNDS, f"bytes beside output {spec.name!r} were written", case)
        if left := arena.unwritten(number, spec):
            reason = f"{left} of {spec.numel} elements of {spec.name!r} never written"
            return Failure(Status.NOT_WRITTEN, reason, case)
        verdict = check_output(arena.view(number, spec).to(answer.exact.device), *answer)
        if verdict.passed:
            continue
        if kind is None or verdict.worst_ratio > NARROW_MISS:
            return Failure(Status.WRONG, f"output {spec.name!r}: {verdict.reason}", case)
        if failure := _second_look(bench, case, kind):
            return failure
    return None


def _answers(bench: Bench, arena: Arena, number: int) -> list[oracle.Answer]:
    """Return the reference's answers to a call, on the device the problem is about."""
    call = arena.calls[number]
    where = "cpu" if bench.problem.device.kind is DeviceKind.CPU else "cuda"
    found = oracle.ask(bench.reference, bench.problem, arena.cases[call.case], call, arena)
    return [oracle.Answer(*(part.to(where) for part in answer)) for answer in found]


def _second_look(bench: Bench, case: Case, kind: Distribution) -> Failure | None:
    """Apply the same limits to errors pooled over fresh seeds: a small output says little about the framework's own."""
    op = plugins.load("ops", bench.problem.op)
    with Arena([case], [0] * POOLED_SEEDS, bench.rng) as arena:
        for number in range(POOLED_SEEDS):
            arena.write_inputs(number, op.make_inputs(case, kind, bench.rng.getrandbits(62)))
        arena.poison_outputs()
        try:
            with _runner(bench, arena) as runner:
                runner.run(0, POOLED_SEEDS, CALL_SECONDS)
                runner.collect(CALL_SECONDS)
        except Lost as lost:
            return Failure(lost.status, lost.reason, case)
        answers = [_answers(bench, arena, number) for number in range(POOLED_SEEDS)]
        for place, spec in enumerate(case.outputs):
            columns = zip(*(each[place] for each in answers), strict=True)
            pooled = [torch.cat([part.reshape(-1) for part in column]) for column in columns]
            values = torch.cat([arena.view(number, spec).reshape(-1) for number in range(POOLED_SEEDS)])
            verdict = check_output(values.to(pooled[0].device), *pooled)
            if not verdict.passed:
                reason = f"output {spec.name!r}, {POOLED_SEEDS} seeds: {verdict.reason}"
                return Failure(Status.WRONG, reason, case)
    return None

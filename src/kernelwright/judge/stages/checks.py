"""How calls become passed or failed checks: trials are run in one process per artefact and judged one by one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from kernelwright.core import plugins
from kernelwright.core.case import Case, Compute, Distribution, TensorSpec
from kernelwright.core.verdict import Status
from kernelwright.judge import oracle
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import Lost, Runner
from kernelwright.judge.error_budget import Depth, Verdict
from kernelwright.judge.execution import left_out, open_runner, plan_for
from kernelwright.judge.runners import FOOTPRINTS, Keeper
from kernelwright.judge.stages.bench import CALL_SECONDS, Bench, Failure, Found, input_elements

NARROW_MISS, POOLED_SEEDS = 2.0, 8
"""An error up to this far beyond its limit is looked at again over this many seeds."""
FEW, FEW_MISS = 16, 4.0
"""Outputs of so few elements, and their own limit: one or two roundings say little about the framework's own error."""

DEVICE_SPARE_BYTES = 4 << 30
"""What host code may hold of a GPU beside its buffers: a context, modules, a cache of its own."""

Inputs = dict[str, torch.Tensor]
Draw = Callable[[int], Inputs]
Check = Callable[[torch.Tensor, oracle.Answer], Verdict]


@dataclass(frozen=True)
class Trial:
    """One call to be judged."""

    case: Case
    draw: Draw
    """Its inputs by seed, drawn when their buffers exist: a stage never holds all of them twice."""
    seed: int = 0
    is_looked_at_again: bool = True
    """Whether a narrow miss may be looked at again over other seeds."""
    what: str = ""
    """What is special about it, for the reason of a failure."""
    check: Check | None = None
    """How an output is judged, if not by the error budget."""
    may_decline: bool = False
    """Whether a clean refusal is an answer."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Inputs that lie in another one's storage."""


def runner_on(bench: Bench, arena: Arena, keeper: Keeper | None = None) -> Runner:
    """Return a runner that is ready for every call of the arena: a fresh process, or the launcher of a keeper."""
    device, builds = bench.problem.device, bench.builds
    return open_runner(bench.candidate, arena, device, builds, bench.nursery, bench.home, keeper)


def drawn(bench: Bench, case: Case, kind: Distribution) -> Trial:
    """Return a trial on fresh inputs of one distribution."""
    return Trial(case, partial(bench.op.make_inputs, case, kind), bench.seed)


def check_cases(bench: Bench, wanted: Sequence[tuple[Case, Distribution]]) -> Found:
    """Run cases, smallest first, in one fresh process per parameter choice; stop at the first failure."""
    return run_trials(bench, [drawn(bench, case, kind) for case, kind in wanted])


def run_trials(bench: Bench, trials: Sequence[Trial]) -> Found:
    """Run trials, smallest first, in one fresh process per parameter choice; stop at the first failure."""
    asked = [trial for trial in trials if not bench.is_left_out(trial.case)]
    if trials and not asked:
        reason = left_out(bench.candidate, trials[0].case, bench.problem.device)
        return 0, Failure(Status.UNSUPPORTED, f"correctness only: {reason}", trials[0].case)
    groups: dict[str, list[Trial]] = {}
    for trial in sorted(asked, key=lambda trial: input_elements(trial.case)):
        if not (trial.may_decline and _plan_declines(bench, trial.case)):
            groups.setdefault(bench.build_key(trial.case), []).append(trial)
    checked = len(asked) - sum(map(len, groups.values()))
    for group in groups.values():
        count, failure = _run_group(bench, group)
        checked += count
        if failure:
            return checked, failure
    return checked, None


def _plan_declines(bench: Bench, case: Case) -> bool:
    """Tell whether a tier-A plan declines a case, which it does before anything runs."""
    backend = plugins.load("backends", bench.candidate.backend)
    if backend.TIER != "A":
        return False
    try:
        plan_for(bench.candidate, case, bench.problem.device if bench.is_planned else backend.INTERPRETED_AS)
    except Lost as lost:
        return lost.status is Status.UNSUPPORTED
    return False


def _run_group(bench: Bench, group: Sequence[Trial]) -> Found:
    with bench.arena(
        [trial.case for trial in group], range(len(group)), [trial.shared for trial in group]
    ) as arena:
        for number, trial in enumerate(group):
            arena.write_inputs(number, trial.draw(trial.seed))
        arena.poison_outputs()
        before = arena.input_digest()
        number = 0
        try:
            with runner_on(bench, arena, bench.keeper) as runner:
                for number, trial in enumerate(group):
                    if failure := _run_one(bench, runner, arena, number, trial):
                        return number + 1, failure
                if failure := _hoard(bench, runner, arena):
                    return len(group), failure
        except Lost as lost:
            return number + 1, explained(Failure(lost.status, lost.reason, group[number].case), group[number])
        if arena.input_digest() != before:
            return len(group), Failure(Status.INPUT_CHANGED, "an input was modified")
    return len(group), None


def _hoard(bench: Bench, runner: Runner, arena: Arena) -> Failure | None:
    """Judge what host code still holds of a GPU's memory: what comes back when its process ends."""
    if arena.index is None or bench.is_planned:
        return None
    before, _ = torch.cuda.mem_get_info(arena.index)
    runner.kill()
    held = torch.cuda.mem_get_info(arena.index)[0] - before
    allowed = DEVICE_SPARE_BYTES + FOOTPRINTS * (arena.inputs.nbytes + arena.outputs.nbytes)
    if held <= allowed:
        return None
    reason = f"{held >> 20} MiB of the device's memory were held, {allowed >> 20} MiB are allowed"
    return Failure(Status.OUT_OF_MEMORY, reason, arena.cases[0])


def _run_one(bench: Bench, runner: Runner, arena: Arena, number: int, trial: Trial) -> Failure | None:
    try:
        runner.run(number, 1, CALL_SECONDS)
    except Lost as lost:
        if trial.may_decline and lost.status is Status.UNSUPPORTED:
            return None
        raise
    runner.collect(CALL_SECONDS)
    answers = answers_to(bench, arena, number)
    again = trial if trial.is_looked_at_again else None
    failure = check_answers(bench, arena, number, answers, again=again, check=trial.check)
    return failure and explained(failure, trial)


def explained(failure: Failure, trial: Trial) -> Failure:
    """Return the failure with what was special about the call in front."""
    if not trial.what:
        return failure
    return Failure(failure.status, f"{trial.what}: {failure.reason}", failure.case)


def check_call(bench: Bench, arena: Arena, number: int, kind: Distribution | None = None) -> Failure | None:
    """Judge the outputs one call left in the arena.

    Given the distribution of its inputs, a narrow miss gets a second look over more seeds; a timed call never does.
    """
    again = None if kind is None else drawn(bench, arena.cases[arena.calls[number].case], kind)
    return check_answers(bench, arena, number, answers_to(bench, arena, number), again=again)


def check_answers(
    bench: Bench,
    arena: Arena,
    number: int,
    answers: Sequence[oracle.Answer],
    *,
    again: Trial | None = None,
    check: Check | None = None,
) -> Failure | None:
    """Judge the outputs of a call whose right answers are known; `again` is what a narrow miss is looked at with."""
    case = arena.cases[arena.calls[number].case]
    for spec, answer in zip(case.outputs, answers, strict=True):
        if failure := check_written(arena, number, spec):
            return failure
        values = arena.view(number, spec).to(answer.exact.device)
        verdict = check(values, answer) if check else answer.judged(values, depth_of(bench, case))
        if verdict.passed:
            continue
        narrow = FEW_MISS if spec.numel <= FEW else NARROW_MISS
        if again is None or verdict.worst_ratio > narrow:
            return Failure(Status.WRONG, f"output {spec.name!r}: {verdict.reason}", case)
        if failure := _second_look(bench, again):
            return failure
    return None


def check_written(arena: Arena, number: int, spec: TensorSpec) -> Failure | None:
    """Judge whether an output was written, all of it and nothing beside it."""
    case = arena.cases[arena.calls[number].case]
    if arena.canary_broken(number, spec):
        return Failure(Status.OUT_OF_BOUNDS, f"bytes beside output {spec.name!r} were written", case)
    if left := arena.unwritten(number, spec):
        reason = f"{left} of {spec.numel} elements of {spec.name!r} never written"
        return Failure(Status.NOT_WRITTEN, reason, case)
    return None


def depth_of(bench: Bench, case: Case) -> Depth | None:
    """Return what bounds every element; tf32 products have no bound in units of fp32."""
    if case.compute is Compute.TF32_OK:
        return None
    return Depth(bench.op.depth(case), bench.op.ROUNDED_INTERMEDIATES)


def answers_to(bench: Bench, arena: Arena, number: int) -> list[oracle.Answer]:
    """Return the reference's answers to a call, on the device the problem is about."""
    call = arena.calls[number]
    return oracle.ask(bench.reference, bench.problem, arena.cases[call.case], call, arena)


def _second_look(bench: Bench, trial: Trial) -> Failure | None:
    """Apply the same limits to errors pooled over fresh seeds: a small output says little about the framework's own."""
    case = trial.case
    with bench.arena([case], [0] * POOLED_SEEDS, [trial.shared] * POOLED_SEEDS) as arena:
        for number in range(POOLED_SEEDS):
            arena.write_inputs(number, trial.draw(bench.seed))
        arena.poison_outputs()
        try:
            with runner_on(bench, arena) as runner:
                runner.run(0, POOLED_SEEDS, CALL_SECONDS)
                runner.collect(CALL_SECONDS)
        except Lost as lost:
            return Failure(lost.status, lost.reason, case)
        answers = [answers_to(bench, arena, number) for number in range(POOLED_SEEDS)]
        for place, spec in enumerate(case.outputs):
            columns = zip(*(each[place] for each in answers), strict=True)
            pooled = oracle.Answer(*(_stacked(column) for column in columns))
            values = _stacked(arena.view(number, spec) for number in range(POOLED_SEEDS))
            verdict = pooled.judged(values.to(pooled.exact.device), depth_of(bench, case))
            if not verdict.passed:
                reason = f"output {spec.name!r}, {POOLED_SEEDS} seeds: {verdict.reason}"
                return Failure(Status.WRONG, reason, case)
    return None


def _stacked(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the rows of several outputs below each other; elements of one row may share a rounding."""
    return torch.cat(
        [part.reshape(-1, part.shape[-1]) if part.ndim > 1 else part.reshape(-1) for part in parts]
    )

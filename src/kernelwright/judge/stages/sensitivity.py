"""Sensitivity: one element or scalar is changed, and the answer follows where it must and stays where it must not.

A changed element is put so far out that an answer which ignores it stands out of the error budget. What float64 says
does not depend on it must keep its very bits, unless the candidate declares that it reorders its sums.
"""

import random
from dataclasses import dataclass
from functools import partial

import torch

from kernelwright.core.case import Case, Distribution
from kernelwright.core.verdict import Status
from kernelwright.judge.arena import Arena
from kernelwright.judge.children import Lost, Runner
from kernelwright.judge.oracle import Answer
from kernelwright.judge.stages.bench import CALL_SECONDS, PROBED_ELEMENTS, Bench, Failure, Found
from kernelwright.judge.stages.checks import (
    Draw,
    Inputs,
    Trial,
    answers_to,
    check_answers,
    depth_of,
    runner_on,
)
from kernelwright.judge.stages.reordering import declares_reordering

PROBES, HEAVY_PROBES = 4, 1
"""Places changed in every input: the first, the last and random ones."""
FAR = 4.0
"""A changed element is so many times the norm of its row away: it dominates every statistic of the row."""
MOST_CHANGE = 1e3
SEARCHES = 20
REPEATS = 3
"""How often an unchanged call is repeated before a moved bit is blamed on the change."""


@dataclass(frozen=True)
class Probe:
    """One call: the base, or the base with one thing changed."""

    what: str
    case: Case
    draw: Draw
    is_local: bool = True
    """Whether answers that stay the same stay so because nothing they depend on changed."""


def sensitivity(bench: Bench) -> Found:
    """Run the problem's case, or a hidden one, with every input and scalar changed in turn, in one process."""
    case = _case(bench)
    probes, seed = probes_of(bench, case), bench.seed
    with bench.arena([probe.case for probe in probes], range(len(probes))) as arena:
        for number, probe in enumerate(probes):
            arena.write_inputs(number, probe.draw(seed))
        arena.poison_outputs()
        try:
            with runner_on(bench, arena, bench.keeper) as runner:
                runner.run(0, len(probes), CALL_SECONDS)
                runner.collect(CALL_SECONDS)
                return _judge(bench, arena, runner, probes)
        except Lost as lost:
            return len(probes), Failure(lost.status, lost.reason, case)


def _case(bench: Bench) -> Case:
    """Return the case to probe; where scalars can vary, one in which they do."""
    case = bench.probed_case()
    if case.scalars and not bench.op.other_scalars(case):
        drawn = [bench.hidden_case(PROBED_ELEMENTS[bench.is_cpu]) for _ in range(SEARCHES)]
        case = next((one for one in drawn if bench.op.other_scalars(one)), case)
    return case


def probes_of(bench: Bench, case: Case) -> list[Probe]:
    """Return the base and its changes: some elements of every input, every scalar that may vary."""
    base = partial(bench.op.make_inputs, case, Distribution.SIGNED)
    probes = [Probe("nothing changed", case, base)]
    for spec in case.inputs:
        if spec.numel:
            places = {0, spec.numel - 1, *(bench.rng.randrange(spec.numel) for _ in range(PROBES - 2))}
            for place in bench.some(sorted(places), HEAVY_PROBES):
                what = f"element {place} of {spec.name!r} changed"
                probes.append(Probe(what, case, partial(_with_one_moved, base, spec.name, place)))
    for change in bench.op.other_scalars(case):
        other = case.model_copy(update={"scalars": {**case.scalars, **change}})
        named = ", ".join(f"{name} = {value}" for name, value in change.items())
        if bench.build_key(other) == bench.build_key(case):
            # Under another scalar an answer may be the same by chance, and come about in another way: bf16 is coarse.
            probes.append(Probe(f"scalar {named}", other, base, is_local=False))
    return probes


def _with_one_moved(base: Draw, name: str, place: int, seed: int) -> Inputs:
    inputs = base(seed)
    return {**inputs, name: moved(inputs[name], place, random.Random(seed))}


def moved(tensor: torch.Tensor, place: int, rng: random.Random) -> torch.Tensor:
    """Return a copy with one element far out of its row, or, of integers, another one's value."""
    changed = tensor.clone()
    flat = changed.view(-1)
    if not tensor.is_floating_point():
        others = tensor[tensor != flat[place]]
        if others.numel():
            flat[place] = others[rng.randrange(others.numel())]
        return changed
    wide = tensor.double()
    norm = float(wide.square().mean().sqrt()) * max(1, tensor.shape[-1] if tensor.ndim else 1) ** 0.5
    sign = 1 if place == 0 or bool(tensor.min() >= 0) or rng.random() < 0.5 else -1
    flat[place] += sign * min(FAR * norm, MOST_CHANGE)
    return changed


def _judge(bench: Bench, arena: Arena, runner: Runner, probes: list[Probe]) -> Found:
    base, credited = answers_to(bench, arena, 0), 0
    for number, probe in enumerate(probes):
        answers = answers_to(bench, arena, number) if number else base
        failure = check_answers(bench, arena, number, answers, again=Trial(probe.case, probe.draw))
        if failure is None and probe.is_local:
            failure = _outside(bench, arena, number, base, answers)
        if failure and failure.status is Status.NOT_DETERMINISTIC and not _repeats(arena, runner):
            reason = "repeated runs on the same inputs differ"
            return credited, Failure(Status.NOT_DETERMINISTIC, reason, probe.case)
        if failure:
            status = Status.WRONG if failure.status is Status.NOT_DETERMINISTIC else failure.status
            return credited, Failure(status, f"{probe.what}: {failure.reason}", probe.case)
        credited += number > 0 and is_telling(bench, probe.case, base, answers)
    return credited, None


def is_telling(bench: Bench, case: Case, base: list[Answer], answers: list[Answer]) -> bool:
    """Tell whether an answer that ignores the change would have been found wrong."""
    return any(
        not new.judged(old.framework, depth_of(bench, case)).passed
        for old, new in zip(base, answers, strict=True)
    )


def _outside(
    bench: Bench, arena: Arena, number: int, base: list[Answer], answers: list[Answer]
) -> Failure | None:
    """Judge the outputs that do not depend on the change: their bits must be those of the base."""
    if declares_reordering(bench.candidate.source):
        return None
    case = arena.cases[arena.calls[number].case]
    for spec, old, new in zip(case.outputs, base, answers, strict=True):
        same = (old.exact == new.exact) | (torch.isnan(old.exact) & torch.isnan(new.exact))
        ours, theirs = arena.view(number, spec), arena.view(0, spec)
        differs = (ours != theirs) & ~(torch.isnan(ours) & torch.isnan(theirs))
        if strayed := int((differs & same.to(differs.device)).sum()):
            reason = f"{strayed} elements of {spec.name!r} changed that do not depend on it"
            # Not deterministic, if the base does not even repeat itself; that is looked at by the caller.
            return Failure(Status.NOT_DETERMINISTIC, reason, case)
    return None


def _repeats(arena: Arena, runner: Runner) -> bool:
    """Tell whether the base gives the same bits again."""
    first = arena.output_bytes(0)
    for _ in range(REPEATS):
        runner.run(0, 1, CALL_SECONDS)
        runner.collect(CALL_SECONDS)
        if not torch.equal(first, arena.output_bytes(0)):
            return False
    return True

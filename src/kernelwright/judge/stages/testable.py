"""The stage that judges the problem, not the candidate: its cases must tell right answers from null models.

What it finds is a property of the problem and is kept for the life of the judge.
"""

import torch

from kernelwright.core.case import Case, Distribution
from kernelwright.core.verdict import NullModel, Status
from kernelwright.judge.null_models import Evidence, kills, without_terms
from kernelwright.judge.oracle import Answer
from kernelwright.judge.stages.bench import (
    HEAVY_ELEMENTS,
    SWEEP_ELEMENTS,
    Bench,
    Failure,
    Found,
    input_elements,
)
from kernelwright.judge.stages.checks import answers_to, depth_of

KILLS = 2
"""Cases that must refuse a null model, one of them the problem's own; of one size alone, with either kind of
numbers."""
ROUNDS = 4
"""Fresh draws before a null model counts as a survivor: one number per case may be right by luck."""
PLAIN = (Distribution.SIGNED, Distribution.SCALED)


def null_models(bench: Bench) -> Found:
    """Judge whether every null model that applies to the op fails on the problem's cases."""
    if bench.problem.hash not in bench.testability:
        bench.testability[bench.problem.hash] = survivor(bench)
    applicable = sum(model not in bench.op.NULL_EXCEPTIONS for model in NullModel)
    if reason := bench.testability[bench.problem.hash]:
        return applicable, Failure(Status.UNTESTABLE, reason, bench.problem.cases[0])
    return applicable, None


class _Tally:
    """How often one null model met a case, and what came of it."""

    def __init__(self) -> None:
        self.met: set[tuple[str, Distribution]] = set()
        self.killed: set[tuple[str, Distribution]] = set()
        self.own_met = self.own_killed = False

    def note(self, pair: tuple[Case, Distribution], killed: bool | None, *, is_own: bool) -> None:
        if killed is None:
            return
        key = (pair[0].hash, pair[1])
        self.met.add(key)
        self.own_met |= is_own
        if killed:
            self.killed.add(key)
            self.own_killed |= is_own

    @property
    def is_settled(self) -> bool:
        sizes, met = ({case for case, _ in pairs} for pairs in (self.killed, self.met))
        is_enough = len(self.killed) >= KILLS and len(sizes) >= min(KILLS, len(met))
        return is_enough and (self.own_killed or not self.own_met)


def survivor(bench: Bench) -> str | None:
    """Return which null model the problem's cases cannot tell from a right answer, or None."""
    applicable = [model for model in NullModel if model not in bench.op.NULL_EXCEPTIONS]
    tallies = {model: _Tally() for model in applicable}
    pairs = _pairs(bench)
    for _ in range(ROUNDS):
        for pair, is_own in pairs:
            open_models = [model for model, tally in tallies.items() if not tally.is_settled]
            if not open_models:
                return None
            evidence = _evidence(bench, *pair)
            for model in open_models:
                tallies[model].note(pair, kills(model, evidence, depth_of(bench, pair[0])), is_own=is_own)
        # Who has no answer to any of the cases, such as an input of the output's shape, will have none to another draw.
        tallies = {model: tally for model, tally in tallies.items() if tally.met}
    for model, tally in tallies.items():
        if not tally.is_settled:
            is_elsewhere = len(tally.killed) >= KILLS and not tally.own_killed
            where = "the problem's own cases" if is_elsewhere else f"{len(tally.met)} cases"
            return f"the null model {model.value!r} passes for a right answer on {where}"
    return None


def _pairs(bench: Bench) -> list[tuple[tuple[Case, Distribution], bool]]:
    """Return the problem's own cases and the smallest of every type, of each plain kind of numbers."""
    affordable = [
        case for case in bench.problem.cases if input_elements(case) <= SWEEP_ELEMENTS[bench.is_cpu]
    ]
    own = affordable or [min(bench.problem.cases, key=input_elements)]
    known = {case.hash for case in own}
    small = {
        case.dtype: case
        for case in sorted(bench.small_cases(), key=input_elements, reverse=True)
        if case.hash not in known
    }
    return [((case, kind), case.hash in known) for kind in PLAIN for case in (*own, *small.values())]


def _evidence(bench: Bench, case: Case, kind: Distribution) -> Evidence:
    """Return the answers to two draws, and to the first of them without some of its terms."""
    first, second = (bench.op.make_inputs(case, kind, bench.seed) for _ in range(2))
    with bench.arena([case], [0, 0, 0]) as arena:
        for number, inputs in enumerate((first, second, without_terms(first))):
            arena.write_inputs(number, inputs)
        answers = [answers_to(bench, arena, number) for number in range(3)]
    if bench.is_heavy:
        # What is refused on the last rows alone would be refused on all of them, in a tenth of the time.
        answers = [[_end_of(answer) for answer in each] for each in answers]
        first = {name: _last_rows(tensor) for name, tensor in first.items()}
    return Evidence(first, answers[0], answers[1], answers[2], case.compute)


def _end_of(answer: Answer) -> Answer:
    return Answer(*map(_last_rows, answer))


def _last_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the last rows of a tensor, no more than a million elements of it, but two rows."""
    if tensor.ndim < 2 or tensor.numel() <= HEAVY_ELEMENTS:
        return tensor
    return tensor[-max(2, HEAVY_ELEMENTS // tensor[0].numel()) :]

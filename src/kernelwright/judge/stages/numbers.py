"""Stages that look at numbers: known answers, hidden shapes, hard distributions, special values, awkward sizes."""

from collections.abc import Sequence
from functools import partial

import torch

from kernelwright.core.case import Case, Distribution, DType
from kernelwright.core.plan_language import named_kernels, parse_plan
from kernelwright.core.verdict import Status
from kernelwright.judge.children import Lost
from kernelwright.judge.error_budget import Verdict, check_exact, check_growth, growth_at
from kernelwright.judge.execution import plan_for
from kernelwright.judge.oracle import Answer
from kernelwright.judge.stages.bench import (
    CALL_SECONDS,
    PROBED_ELEMENTS,
    SMOKE_ELEMENTS,
    SWEEP_ELEMENTS,
    Bench,
    Failure,
    Found,
    input_elements,
)
from kernelwright.judge.stages.checks import (
    Inputs,
    Trial,
    answers_to,
    check_cases,
    drawn,
    run_trials,
    runner_on,
)
from kernelwright.judge.stages.intake import whose_kernels
from kernelwright.judge.stages.reordering import declares_reordering
from kernelwright.ops._draw import EXACT_KINDS

FOREIGN_ROUNDINGS = 8
"""By how much an answer may miss a known point if the reference is the user's own and may round on the way."""
HIDDEN_EXACT = 2
PATH_DRAWS, RARE_DRAWS = 60, 1000
"""Sizes a plan is asked about in search of kernels no other size reaches, more if it names one; each takes 1 ms."""
OWN_TRIALS, OWN_SPECIALS = 3, 3
"""Hard distributions, and special values, of an own case too big for all of them: others in every evaluation."""
HEAVY_TRIALS = 4
"""Hard distributions, or special values, of an evaluation in which each takes seconds."""
PLAIN = (Distribution.SIGNED, Distribution.SCALED)
HARD = tuple(kind for kind in Distribution if kind not in PLAIN)


def exactness(bench: Bench) -> Found:
    """Run points with known answers on the problem's case, a small case of every dtype and hidden shapes."""
    small = {case.dtype: case for case in bench.small_cases()}
    found = _exact(bench, [bench.probed_case(), *small.values()])
    if found[1]:
        return found
    # Kernels for these may still be under way: most that are wrong are found out without them.
    more = _exact(bench, [bench.hidden_case(PROBED_ELEMENTS[bench.is_cpu]) for _ in range(HIDDEN_EXACT)])
    return found[0] + more[0], more[1]


def _exact(bench: Bench, cases: Sequence[Case]) -> Found:
    return run_trials(bench, [trial for case in cases for trial in _exact_trials(bench, case)])


def _exact_trials(bench: Bench, case: Case) -> list[Trial]:
    trials, first = [], bench.seed // EXACT_KINDS * EXACT_KINDS
    for seed in range(first, first + EXACT_KINDS):
        point = bench.op.exact_inputs(case, seed)
        if point is not None:
            inputs, roundings = point
            if bench.problem.reference is not None:
                roundings = max(roundings, FOREIGN_ROUNDINGS)
            what = f"inputs of known answer, kind {seed - first}"
            check = partial(_is_exact, roundings=roundings)
            trials.append(
                Trial(case, partial(_known, inputs), is_looked_at_again=False, what=what, check=check)
            )
    return trials


def _known(inputs: Inputs, seed: int) -> Inputs:  # noqa: ARG001
    return inputs


def _is_exact(values: torch.Tensor, answer: Answer, *, roundings: int) -> Verdict:
    return check_exact(values, answer.exact, answer.scale, roundings)


def shape_sweep(bench: Bench) -> Found:
    """Run the problem's own cases, the public and fresh hidden shapes."""
    most = SWEEP_ELEMENTS[bench.is_cpu]
    public = [
        case
        for case in bench.op.public_cases()
        if input_elements(case) <= most and case.dtype in bench.dtypes
    ]
    # Where sizes are fixed no other shape is hidden: what is drawn anew is the content, and the own cases have two.
    hidden = [bench.hidden_case(most) for _ in range(0 if bench.is_heavy else bench.hidden_shapes)]
    hidden += other_paths(bench, (*bench.known_cases(), *hidden), most)
    own = [(case, kind) for case in bench.problem.cases for kind in PLAIN]
    found = check_cases(bench, own + [(case, bench.rng.choice(PLAIN)) for case in (*public, *hidden)])
    if found[1]:
        return found
    # A library could be at work for these sizes alone.
    audited, failure = whose_kernels(bench, bench.problem.cases)
    return found[0] + audited, failure


def other_paths(bench: Bench, seen: Sequence[Case], most: int) -> list[Case]:
    """Return hidden shapes for which a plan launches kernels it launches for none of those seen, if some are found.

    A plan that sends rare sizes to a kernel of their own would have that kernel judged by luck.
    """
    if not bench.is_planned or not bench.hidden_shapes or bench.has_fixed_cases:
        return []
    reached = {kernels_of(bench, case) for case in seen}
    named = named_kernels(parse_plan(bench.candidate.source))
    found: list[Case] = []
    for drawn_so_far in range(RARE_DRAWS):
        if drawn_so_far >= PATH_DRAWS and named <= frozenset().union(*reached):
            break
        case = bench.op.sample_case(bench.rng)
        kernels = kernels_of(bench, case) if case.dtype in bench.dtypes else frozenset()
        if kernels and kernels not in reached and input_elements(case) <= most:
            reached.add(kernels)
            found.append(case)
    return found


def kernels_of(bench: Bench, case: Case) -> frozenset[str]:
    """Return the kernels a plan launches for a case; none if it declines."""
    try:
        plan = plan_for(bench.candidate, case, bench.problem.device)
    except Lost:  # told by whoever asks for the case
        return frozenset()
    return frozenset(launch.kernel for launch in plan.launches)


def stability(bench: Bench) -> Found:
    """Run every hard distribution on a small case of every dtype and on the problem's own, then look at growth."""
    # Every one: an unstable formula drowns in the rounding of halves, an overflow shows in them alone.
    small = bench.small_cases()
    by_dtype = [[case for case in small if case.dtype is dtype] for dtype in bench.dtypes]
    choices = [(kind, cases) for cases in by_dtype if cases for kind in _hard(bench, cases[0].dtype)]
    trials = [
        drawn(bench, bench.rng.choice(cases), kind) for kind, cases in bench.some(choices, HEAVY_TRIALS)
    ]
    checked, failure = run_trials(bench, [*trials, *_own_trials(bench)])
    if failure:
        return checked, failure
    grown, failure = _growth(bench, bench.problem.cases[0].dtype)
    return checked + grown, failure


def _own_trials(bench: Bench) -> list[Trial]:
    """Return hard distributions at the problem's own sizes: a kernel may have a way of its own for exactly those.

    Softmax without its maximum, at one size alone, was accepted as 39 % faster.
    """
    if bench.has_fixed_cases:
        return []
    trials = []
    for case in bench.problem.cases:
        kinds = _hard(bench, case.dtype)
        if input_elements(case) > PROBED_ELEMENTS[bench.is_cpu]:
            kinds = bench.rng.sample(kinds, OWN_TRIALS)
        trials += [drawn(bench, case, kind) for kind in kinds]
    return trials


def _hard(bench: Bench, dtype: DType) -> list[Distribution]:
    """Return the hard distributions a kernel must stand in a dtype."""
    return [kind for kind in HARD if not (kind is Distribution.DENORMAL and _flushes(bench, dtype))]


def _flushes(bench: Bench, dtype: DType) -> bool:
    """Tell whether a kernel adds by a GPU's fp32 atomics, which take what is below the smallest normal for zero."""
    return not bench.is_cpu and dtype is DType.FP32 and declares_reordering(bench.candidate.source)


def _growth(bench: Bench, dtype: DType) -> Found:
    """Compare how errors grow with the length of the reduction, all lengths in one process."""
    cases = [case for case in bench.op.growth_cases(dtype) if not bench.is_left_out(case)]
    if len(cases) < 3 or len({bench.build_key(case) for case in cases}) > 1:
        return 0, None
    with bench.arena(cases, range(len(cases))) as arena:
        for number, case in enumerate(cases):
            arena.write_inputs(number, bench.op.make_inputs(case, Distribution.SIGNED, bench.seed))
        arena.poison_outputs()
        try:
            with runner_on(bench, arena, bench.keeper) as runner:
                runner.run(0, len(cases), CALL_SECONDS)
                runner.collect(CALL_SECONDS)
        except Lost as lost:
            return len(cases), Failure(lost.status, lost.reason, cases[-1])
        answers = [answers_to(bench, arena, number) for number in range(len(cases))]
        for place, spec in enumerate(cases[0].outputs):
            found = [
                growth_at(
                    bench.op.depth(case),
                    arena.view(number, case.outputs[place]).to(answers[number][place].exact.device),
                    *answers[number][place],
                )
                for number, case in enumerate(cases)
            ]
            verdict = check_growth(found)
            if not verdict.passed:
                reason = f"output {spec.name!r}: {verdict.reason}"
                return len(cases), Failure(Status.WRONG, reason, cases[-1])
    return len(cases), None


def special_values(bench: Bench) -> Found:
    """Plant special values in the problem's case, if it is small, in a hidden one and in the deepest small one."""
    cases = [bench.hidden_case(SMOKE_ELEMENTS)]
    own = bench.probed_case()
    cases.append(own if input_elements(own) <= SMOKE_ELEMENTS * 2 else bench.hidden_case(SMOKE_ELEMENTS))
    # What walks a sum in pieces has several there, and special values in some of them only.
    small = [case for case in bench.known_cases() if input_elements(case) <= SMOKE_ELEMENTS]
    small = [case for case in small if not bench.is_left_out(case)]
    deepest = max(map(bench.op.depth, small), default=0)
    cases += bench.rng.sample([case for case in small if bench.op.depth(case) == deepest], min(1, len(small)))
    trials = []
    for case in {case.hash: case for case in cases}.values() if bench.has_fixed_cases else cases:
        seed = bench.seed
        for place, (what, inputs) in enumerate(bench.op.special_inputs(case, seed)):
            trials.append(Trial(case, partial(_planted, bench, case, place, {seed: inputs}), seed, what=what))
    trials = bench.some(trials, HEAVY_TRIALS)
    smallest = min(bench.problem.cases, key=input_elements)
    if smallest not in cases and input_elements(smallest) <= SWEEP_ELEMENTS[bench.is_cpu]:
        seed = bench.seed
        planted = list(enumerate(bench.op.special_inputs(smallest, seed)))
        for place, (what, inputs) in bench.rng.sample(planted, min(OWN_SPECIALS, len(planted))):
            draw = partial(_planted, bench, smallest, place, {seed: inputs})
            trials.append(Trial(smallest, draw, seed, what=what))
    return run_trials(bench, trials)


def _planted(bench: Bench, case: Case, place: int, known: dict[int, Inputs], seed: int) -> Inputs:
    """Return what is planted at that place of the list, for the first seed as it was drawn."""
    return known.get(seed) or bench.op.special_inputs(case, seed)[place][1]


def edge_cases(bench: Bench) -> Found:
    """Run the awkward sizes."""
    wanted = [case for case in bench.op.edge_cases() if case.dtype in bench.dtypes]
    return check_cases(bench, [(case, Distribution.SIGNED) for case in wanted])

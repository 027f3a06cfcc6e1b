"""One run, from a model to a verified splice. Every step is an event before the next begins.

1. The model process traces the model; known ops become problems.
2. The judge evaluates the baseline, then every seed the machine can build; the gate keeps what is proven faster.
   Every five keeps, the best is compared with the baseline itself: claims that do not add up are rolled back.
3. What is to be put into the model passes the full profile and a confirming comparison first.
4. Winners are put into the model in fresh processes, checked against float64 and timed against the same graph
   without them; they stay only if they pay end to end.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device
from kernelwright.core.errors import BackendUnavailable, NothingToOptimize, ServiceDied, UnfairClock
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    ModelVerified,
    ProblemFound,
    RunEnded,
)
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.messages.model import ModelTimed, ModelTraced, TraceModel, VerifyModel, Winner
from kernelwright.core.problem import Problem
from kernelwright.core.stats import block_bootstrap, hodges_lehmann, ratchet_agrees
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Comparison, Evaluation, Profile, Status
from kernelwright.engine import gate
from kernelwright.engine.seeds import seed
from kernelwright.engine.service import JudgeClient, Show, ask_model
from kernelwright.store.blobs import Blobs

MODEL_ROUNDS = 12
DRIFT_LIMIT = 1.5
"""The spliced model may be this much further from float64 than the original: the error budget's own factor."""
CPU_BACKENDS = ("cpp",)
AUDIT_EVERY = 5
"""Keeps after which their product is checked against the baseline itself."""


@dataclass
class Run:
    """A run in progress: its settings, its journal and the tree folded from it."""

    config: RunConfig
    device: Device
    threads: int
    folder: Path
    record: Callable[[Sequence[Body]], None]
    """Append events durably and fold them into the tree."""
    tree: Tree
    show: Show


def optimize(run: Run, judge: JudgeClient, traced: ModelTraced) -> None:
    """Carry out the run on a traced model."""
    try:
        for problem in problems(run, traced):
            run.record([ProblemFound(problem=problem)])
            search(run, judge, problem)
            confirm(run, judge, problem)
    except UnfairClock as error:
        run.record([RunEnded(reason=str(error))])
        raise
    reason = verify(run)
    run.record([RunEnded(reason=reason)])


def trace(run: Run) -> ModelTraced:
    """Return what the model consists of."""
    assert run.config.model is not None
    run.show(f"tracing {run.config.model}")
    answer = ask_model(
        TraceModel(spec=run.config.model, options=run.config.model_options(), threads=run.threads), run.show
    )
    if not isinstance(answer, ModelTraced):
        raise ServiceDied("model", "gave times where a trace was asked for")
    if not answer.regions:
        raise NothingToOptimize(run.config.model, plugins.names("ops"))
    return answer


def problems(run: Run, traced: ModelTraced) -> list[Problem]:
    """Return one problem per op and case, largest share first."""
    found = [
        Problem(
            op=region.case.op,
            cases=(region.case,),
            device=run.device,
            count=region.count,
            share=region.share,
        )
        for region in traced.regions
    ]
    return sorted(found, key=lambda problem: -problem.share)


def backends(config: RunConfig) -> tuple[str, ...]:
    """Return the languages to try, refusing one that this machine cannot use."""
    names = CPU_BACKENDS if config.backend == "auto" else (config.backend,)
    for name in names:
        status = plugins.load("backends", name).available()
        if not status.usable:
            raise BackendUnavailable(name, status.detail, status.remedy)
        if plugins.load("backends", name).TIER == "A":
            remedy = "Runs are on the CPU so far: pass --backend cpp."
            raise BackendUnavailable(name, "a GPU to be timed on", remedy)
    return names


def search(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Judge the baseline and every seed of a problem; the tree's pointer ends on the best proven one."""
    baseline = seed(problem.op, "eager", Origin.BASELINE)
    if baseline is None:
        return
    verdict = evaluate(run, judge, problem, baseline)
    run.record([Decided(decision=gate.first_of_problem(verdict))])
    if verdict.status is not Status.ACCEPTED:
        raise ServiceDied("judge", f"the baseline of {problem.op} was not accepted: {verdict.failure}")
    for name in backends(run.config):
        if challenger := seed(problem.op, name, Origin.AUTHOR):
            challenge(run, judge, problem, challenger)


def evaluate(
    run: Run, judge: JudgeClient, problem: Problem, candidate: Candidate, profile: Profile = Profile.KEEP
) -> Evaluation:
    """Journal a candidate and the judge's verdict on it."""
    if (problem.hash, candidate.hash) not in run.tree.nodes:
        run.record([CandidateProposed(problem_hash=problem.hash, candidate=candidate)])
    verdict = judge.evaluate(problem, candidate, profile)
    run.record([Evaluated(evaluation=verdict)])
    return verdict


def challenge(run: Run, judge: JudgeClient, problem: Problem, challenger: Candidate) -> None:
    """Judge a challenger and, if it is accepted, compare it with the best so far."""
    verdict = evaluate(run, judge, problem, challenger)
    node = run.tree.nodes[problem.hash, challenger.hash]
    if verdict.status is not Status.ACCEPTED:
        run.record([Decided(decision=gate.rejected(verdict))])
        return
    best = run.tree.nodes[problem.hash, run.tree.best[problem.hash]]
    earlier = [found for found in node.comparisons if found.incumbent_hash == best.candidate.hash]
    found = judge.compare(problem, best.candidate, challenger, earlier[-1] if earlier else None)
    if isinstance(found, Comparison):
        decision = gate.decide(verdict, found)
        run.record([Compared(comparison=found), Decided(decision=decision)])
        if decision.kept:
            audit(run, judge, problem)
    elif found.candidate_hash == challenger.hash:
        run.record([Decided(decision=gate.disqualified(verdict, found))])
    else:
        dethrone(run, best, found)
        challenge(run, judge, problem, challenger)


def dethrone(run: Run, holder: Node, found: Disqualified) -> None:
    """Take the title from a holder that failed while it was timed; a baseline that does so ends the run."""
    if holder.candidate.origin is Origin.BASELINE:
        raise ServiceDied("judge", f"the baseline failed while it was timed: {found.reason}")
    run.record([Decided(decision=gate.disqualified(holder.evaluations[-1], found))])


def audit(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Every few keeps, compare the best with the baseline itself; roll back what does not add up."""
    held = run.tree.titles[problem.hash]
    nodes = [run.tree.nodes[problem.hash, key] for key in held]
    if len(held) <= AUDIT_EVERY or (len(held) - 1) % AUDIT_EVERY:
        return
    found = judge.compare(problem, nodes[0].candidate, nodes[-1].candidate)
    if not isinstance(found, Comparison):
        dethrone(run, nodes[-1] if found.candidate_hash == held[-1] else nodes[0], found)
        return
    claims = [_claim(before, node) for before, node in pairwise(nodes)]
    run.record([Compared(comparison=found)])
    if ratchet_agrees((found.ci_low, found.ci_high), claims):
        return
    for node in nodes[: -AUDIT_EVERY - 1 : -1]:
        run.record([Decided(decision=gate.rolled_back(node.evaluations[-1], found))])


def _claim(before: Node, node: Node) -> tuple[float, float]:
    """Return the gain a keep claims over the holder before it; an audit's own comparison with the baseline is none."""
    kept = [found for found in node.comparisons if found.incumbent_hash == before.candidate.hash]
    return kept[-1].ci_low, kept[-1].ci_high


def confirm(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Put the best through the full profile and a confirming comparison; whoever fails loses the title."""
    while (held := run.tree.titles.get(problem.hash, []))[1:]:
        first, best = (run.tree.nodes[problem.hash, key] for key in (held[0], held[-1]))
        verdict = evaluate(run, judge, problem, best.candidate, Profile.SHIP)
        if verdict.status is not Status.ACCEPTED:
            run.record([Decided(decision=gate.rejected(verdict))])
            continue
        found = judge.compare(problem, first.candidate, best.candidate, confirm=True)
        if not isinstance(found, Comparison):
            dethrone(run, best if found.candidate_hash == best.candidate.hash else first, found)
            continue
        decision = gate.confirmed(verdict, found)
        run.record([Compared(comparison=found), Decided(decision=decision)])
        if decision.kept:
            return


def winners(run: Run) -> tuple[Winner, ...]:
    """Return every problem's best that is no baseline, with the very artefact that was certified."""
    blobs, chosen = Blobs(run.folder / "blobs"), []
    for problem_hash, candidate_hash in run.tree.best.items():
        node = run.tree.nodes[problem_hash, candidate_hash]
        if node.candidate.origin is Origin.BASELINE:
            continue
        for case in run.tree.problems[problem_hash].cases:
            key = digest(canonical_json(node.candidate.values_for(case.hash)))
            artefact = node.evaluations[-1].artefact_hashes[key]
            chosen.append(
                Winner(
                    problem_hash=problem_hash,
                    candidate_hash=candidate_hash,
                    backend=node.candidate.backend,
                    case=case,
                    artefact=str(blobs.path(artefact)),
                    artefact_hash=artefact,
                )
            )
    return tuple(chosen)


def verify(run: Run) -> str:
    """Put the winners into the model, journal what that does end to end, and return why the run ends."""
    chosen = winners(run)
    if not chosen:
        return "no candidate was proven faster than the baseline; nothing is spliced"
    assert run.config.model is not None
    timed: list[ModelTimed] = []
    for number in range(run.config.model_processes):
        run.show(f"model with winners: process {number + 1} of {run.config.model_processes}")
        request = VerifyModel(
            spec=run.config.model,
            options=run.config.model_options(),
            threads=run.threads,
            winners=chosen,
            rounds=MODEL_ROUNDS,
            seed=random.SystemRandom().getrandbits(31),
        )
        answer = ask_model(request, run.show)
        if not isinstance(answer, ModelTimed):
            raise ServiceDied("model", "gave a trace where times were asked for")
        timed.append(answer)
    event = verification(chosen, timed)
    run.record([event])
    return "the winners pay end to end" if event.shipped else event.reason


def verification(chosen: Sequence[Winner], timed: Sequence[ModelTimed]) -> ModelVerified:
    """Return what several processes say of the spliced model: a pure function of their raw times."""
    ratio, low, high = _interval([_log_ratios(one.captured_us, one.spliced_us) for one in timed])
    eager_ratio, eager_low, eager_high = _interval(
        [_log_ratios(one.eager_us, one.spliced_us) for one in timed]
    )
    drift = max(one.spliced_error / max(one.original_error, 1e-30) for one in timed)
    fallbacks = sum(one.fallbacks for one in timed)
    shipped = False
    if drift > DRIFT_LIMIT:
        reason = f"outputs drift: {drift:.2f} times the original's own error against float64"
    elif not all(one.spliced_calls for one in timed):
        reason = "the winners were never called"
    elif low <= 1 or eager_low <= 1:
        reason = "no end-to-end gain could be proven: the interval reaches 1"
    else:
        reason, shipped = "faster end to end, outputs within the original's own error", True
    return ModelVerified(
        winners={winner.problem_hash: winner.candidate_hash for winner in chosen},
        ratio=ratio,
        ci_low=low,
        ci_high=high,
        eager_ratio=eager_ratio,
        eager_ci_low=eager_low,
        eager_ci_high=eager_high,
        drift=drift,
        fallbacks=fallbacks,
        shipped=shipped,
        reason=reason,
    )


def _log_ratios(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [math.log(old / new) for old, new in zip(before, after, strict=True)]


def _interval(groups: list[list[float]]) -> tuple[float, float, float]:
    """Return ratio and 95 % interval over processes and rounds."""
    centre = hodges_lehmann([median(group) for group in groups])
    low, high = block_bootstrap(groups, random.Random(0), block=4)
    return math.exp(centre), math.exp(min(low, centre)), math.exp(max(high, centre))

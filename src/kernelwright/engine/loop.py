"""One run, from ranked problems to a verified splice. Every step is an event before the next begins.

1. The problems come ranked: the most end-to-end time to win first (`offering`).
2. The judge evaluates the baselines, eager and torch.compile; the faster one holds the title. Then every seed the
   machine can build; the gate keeps what is proven faster. Every five keeps, the best is compared with the baseline
   itself: claims that do not add up are rolled back.
3. What is to be put into the model passes the full profile and a confirming comparison first, and is proven against
   both baselines.
4. Winners are put into the model one by one in fresh processes, and stay only if they pay there (`splicing`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import ServiceDied, UnfairClock
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    Noted,
    ProblemFound,
    RunEnded,
)
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.messages.model import VerifyModel
from kernelwright.core.problem import Problem
from kernelwright.core.stats import ratchet_agrees
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Comparison, Evaluation, Outcome, Profile, Status
from kernelwright.engine import gate
from kernelwright.engine.seeds import compiled_baseline, seed
from kernelwright.engine.service import JudgeClient, Show
from kernelwright.engine.splicing import ROUNDS, Whole, added_one_by_one, timed, verification
from kernelwright.engine.winners import winners, write_drop_in
from kernelwright.store.blobs import Blobs

AUDIT_EVERY = 5
"""Keeps after which their product is checked against the baseline itself."""
NEAR = 1.5
"""A baseline certified this much slower than the other is out of the question; one that is nearer is raced too."""


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
    backends: tuple[str, ...] = ("cpp",)
    """Languages to try, in this order."""
    cache: Path | None = None
    """Where torch.compile keeps what it compiled, from one process to the next."""


def optimize(run: Run, judge: JudgeClient, problems: Sequence[Problem]) -> None:
    """Carry out the run on ranked problems."""
    try:
        for problem in problems:
            run.record([ProblemFound(problem=problem)])
            if search(run, judge, problem):
                confirm(run, judge, problem)
        reason = verify(run) if problems else "no region of the model is offered; nothing is spliced"
    except (UnfairClock, ServiceDied) as error:
        run.record([RunEnded(reason=str(error))])
        raise
    run.record([RunEnded(reason=reason)])


def search(run: Run, judge: JudgeClient, problem: Problem) -> bool:
    """Judge the baselines and every seed of a problem; tell whether there was anything to beat.

    The tree's pointer ends on the best proven one.
    """
    eager, compiled = seed(problem.op, "eager", Origin.BASELINE), compiled_baseline(problem, run.threads)
    # On a CPU torch.compile takes 20 s to compile one case (docs/measured.md): it is asked once there is something to
    # hold against it.
    is_late = problem.device.kind is DeviceKind.CPU
    if not enthrone(run, judge, problem, [eager, None if is_late else compiled]):
        return False
    for name in run.backends:
        if challenger := seed(problem.op, name, Origin.AUTHOR):
            challenge(run, judge, problem, challenger)
    if is_late and compiled is not None and run.tree.titles[problem.hash][1:]:
        raise_the_bar(run, judge, problem, compiled)
    return True


def enthrone(run: Run, judge: JudgeClient, problem: Problem, baselines: Sequence[Candidate | None]) -> bool:
    """Judge baselines; the faster of those accepted holds the title. Tell whether one does."""
    accepted: list[Evaluation] = []
    for baseline in baselines:
        if baseline is None:
            continue
        verdict = evaluate(run, judge, problem, baseline)
        if verdict.status is Status.ACCEPTED:
            accepted.append(verdict)
        else:
            run.record([Decided(decision=gate.rejected(verdict))])
    if not accepted:
        run.record([Noted(text=f"no baseline of {problem.cases[0].label} was accepted; it is left alone")])
        return False
    first, *slower = sorted(accepted, key=lambda verdict: certified_us(verdict, problem))
    least = certified_us(first, problem)
    for verdict in slower:
        times = certified_us(verdict, problem) / least
        run.record([Decided(decision=gate.slower_baseline(verdict, times))])
    run.record([Decided(decision=gate.first_of_problem(first))])
    return True


def raise_the_bar(run: Run, judge: JudgeClient, problem: Problem, late: Candidate) -> None:
    """Judge a second baseline; if it is the faster one, it takes the title and the best has to win it back."""
    verdict = evaluate(run, judge, problem, late)
    if verdict.status is not Status.ACCEPTED:
        run.record([Decided(decision=gate.rejected(verdict))])
        return
    held = [run.tree.nodes[problem.hash, key] for key in run.tree.titles[problem.hash]]
    times = certified_us(verdict, problem) / certified_us(held[0].evaluations[0], problem)
    if times >= 1:
        run.record([Decided(decision=gate.slower_baseline(verdict, times))])
        return
    for node in held[:0:-1]:
        run.record([Decided(decision=gate.bar_raised(node.evaluations[-1]))])
    run.record(
        [
            Decided(decision=gate.slower_baseline(held[0].evaluations[0], 1 / times)),
            Decided(decision=gate.first_of_problem(verdict)),
        ]
    )
    race(run, judge, problem, held[-1].evaluations[-1])


def certified_us(verdict: Evaluation, problem: Problem) -> float:
    """Return a candidate's certified time, every case by its weight."""
    assert verdict.timing is not None, "what was accepted was timed"
    times = {one.case_hash: one.median_us for one in verdict.timing.cases}
    return sum(case.weight * times[case.hash] for case in problem.cases)


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
    if verdict.status is Status.ACCEPTED:
        race(run, judge, problem, verdict)
    else:
        run.record([Decided(decision=gate.rejected(verdict))])


def race(run: Run, judge: JudgeClient, problem: Problem, verdict: Evaluation) -> None:
    """Compare an accepted challenger with the best so far."""
    node = run.tree.nodes[problem.hash, verdict.candidate_hash]
    challenger = node.candidate
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
        race(run, judge, problem, verdict)


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
    """Put the best through the full profile and confirming comparisons; whoever fails loses the title."""
    while (held := run.tree.titles.get(problem.hash, []))[1:]:
        first, best = (run.tree.nodes[problem.hash, key] for key in (held[0], held[-1]))
        verdict = evaluate(run, judge, problem, best.candidate, Profile.SHIP)
        if verdict.status is not Status.ACCEPTED:
            run.record([Decided(decision=gate.rejected(verdict))])
            continue
        if not beats_rivals(run, judge, problem, verdict):
            continue
        found = judge.compare(problem, first.candidate, best.candidate, confirm=True)
        if not isinstance(found, Comparison):
            dethrone(run, best if found.candidate_hash == best.candidate.hash else first, found)
            continue
        decision = gate.confirmed(verdict, found)
        run.record([Compared(comparison=found), Decided(decision=decision)])
        if decision.kept:
            return


def beats_rivals(run: Run, judge: JudgeClient, problem: Problem, verdict: Evaluation) -> bool:
    """Tell whether the best is proven faster than the other baselines too; if not, it has lost its title."""
    best = run.tree.nodes[problem.hash, verdict.candidate_hash]
    proven = {found.incumbent_hash for found in best.comparisons if found.outcome is Outcome.FASTER}
    for rival in rivals(run, problem):
        if rival.candidate.hash in proven:
            continue
        found = judge.compare(problem, rival.candidate, best.candidate)
        if not isinstance(found, Comparison):
            dethrone(run, best if found.candidate_hash == best.candidate.hash else rival, found)
            return False
        run.record([Compared(comparison=found)])
        if found.outcome is not Outcome.FASTER:
            run.record([Decided(decision=gate.decide(verdict, found))])
            return False
    return True


def rivals(run: Run, problem: Problem) -> Iterator[Node]:
    """Yield the accepted baselines that do not hold the title and are not far slower than the one that does."""
    first = run.tree.titles[problem.hash][0]
    least = certified_us(run.tree.nodes[problem.hash, first].evaluations[0], problem)
    for (owner, key), node in run.tree.nodes.items():
        if owner != problem.hash or key == first or node.candidate.origin is not Origin.BASELINE:
            continue
        verdict = node.evaluations[0]
        if verdict.status is Status.ACCEPTED and certified_us(verdict, problem) <= NEAR * least:
            yield node


def verify(run: Run) -> str:
    """Put the winners into the model one by one, journal what that does, and return why the run ends."""
    groups = winners(run.tree, Blobs(run.folder / "blobs"))
    if not groups:
        return "no candidate was proven faster than the baselines; nothing is spliced"
    assert run.config.model is not None
    request = VerifyModel(
        spec=run.config.model,
        options=run.config.model_options(),
        threads=run.threads,
        winners=(),
        rounds=ROUNDS,
        seed=0,
        rest=run.config.who_runs_the_rest(),
        cache_folder=str(run.cache) if run.cache else None,
    )
    whole = Whole(request, run.config.model_processes, run.show)
    rule = partial(verification, against=run.config.against)
    verified, stay = added_one_by_one(groups, partial(timed, whole, groups), rule, run.record)
    if not verified.shipped:
        return verified.reason
    write_drop_in(run.folder, run.tree, stay)
    return "the winners pay end to end"

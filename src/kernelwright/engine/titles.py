"""Who holds the title of a problem: baselines, challengers, audits, confirmation.

Every function reads the tree first and does only what is not in it yet: called again after a kill, it goes on where the
journal ends. What belongs together is appended at once.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.errors import ServiceDied
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    LessonLearnt,
    Noted,
)
from kernelwright.core.messages.judge import Disqualified
from kernelwright.core.problem import Problem
from kernelwright.core.stats import ratchet_agrees
from kernelwright.core.tree import Node
from kernelwright.core.verdict import Comparison, Evaluation, Outcome, Profile, Status
from kernelwright.engine import gate
from kernelwright.engine.knowing import kept_lesson
from kernelwright.engine.lessons import trap_after_race
from kernelwright.engine.run import Run
from kernelwright.engine.service import JudgeClient

AUDIT_EVERY = 5
"""Keeps after which their product is checked against the baseline itself."""
NEAR = 1.5
"""A baseline certified this much slower than the other is out of the question; one that is nearer is raced too."""


def evaluate(
    run: Run, judge: JudgeClient, problem: Problem, candidate: Candidate, profile: Profile = Profile.KEEP
) -> Evaluation:
    """Return the verdict on a candidate, from the journal if it is there."""
    if node := run.tree.nodes.get((problem.hash, candidate.hash)):
        for verdict in reversed(node.evaluations):
            if verdict.profile is profile:
                return verdict
    else:
        run.record([CandidateProposed(problem_hash=problem.hash, candidate=candidate)])
    verdict = judge.evaluate(problem, candidate, profile)
    run.record([Evaluated(evaluation=verdict)])
    return verdict


def certified_us(verdict: Evaluation, problem: Problem) -> float:
    """Return a candidate's certified time, every case by its weight."""
    assert verdict.timing is not None, "what was accepted was timed"
    times = {one.case_hash: one.median_us for one in verdict.timing.cases}
    return sum(case.weight * times[case.hash] for case in problem.cases)


def enthrone(run: Run, judge: JudgeClient, problem: Problem, baselines: Sequence[Candidate]) -> bool:
    """Judge baselines; the faster of those accepted holds the title. Tell whether one does."""
    verdicts = [evaluate(run, judge, problem, baseline) for baseline in baselines]
    accepted = [verdict for verdict in verdicts if verdict.status is Status.ACCEPTED]
    told: list[Body] = [
        Decided(decision=gate.rejected(verdict)) for verdict in verdicts if verdict not in accepted
    ]
    if not accepted:
        run.record(
            [*told, Noted(text=f"no baseline of {problem.cases[0].label} was accepted; it is left alone")]
        )
        return False
    first, *slower = sorted(accepted, key=lambda verdict: certified_us(verdict, problem))
    least = certified_us(first, problem)
    told += [
        Decided(decision=gate.slower_baseline(verdict, certified_us(verdict, problem) / least))
        for verdict in slower
    ]
    run.record([*told, Decided(decision=gate.first_of_problem(first))])
    return True


def raise_the_bar(run: Run, judge: JudgeClient, problem: Problem, late: Candidate) -> None:
    """Judge a second baseline; if it is the faster one, it takes the title and the best has to win it back."""
    verdict = evaluate(run, judge, problem, late)
    node = run.tree.nodes[problem.hash, late.hash]
    if node.decision is None:
        run.record(_bar_raised(run, problem, verdict))
    if run.tree.best[problem.hash] == late.hash:
        former = _dethroned_by_the_bar(run, problem)
        if former and not any(found.incumbent_hash == late.hash for found in former.comparisons):
            race(run, judge, problem, [former.evaluations[-1]])


def _bar_raised(run: Run, problem: Problem, verdict: Evaluation) -> list[Body]:
    if verdict.status is not Status.ACCEPTED:
        return [Decided(decision=gate.rejected(verdict))]
    held = [run.tree.nodes[problem.hash, key] for key in run.tree.titles[problem.hash]]
    times = certified_us(verdict, problem) / certified_us(held[0].evaluations[0], problem)
    if times >= 1:
        return [Decided(decision=gate.slower_baseline(verdict, times))]
    return [
        *(Decided(decision=gate.bar_raised(node.evaluations[-1])) for node in held[:0:-1]),
        Decided(decision=gate.slower_baseline(held[0].evaluations[0], 1 / times)),
        Decided(decision=gate.first_of_problem(verdict)),
    ]


def _dethroned_by_the_bar(run: Run, problem: Problem) -> Node | None:
    """Return the best of those who held a title when a faster baseline came: the last one that had won it."""
    lost = [
        node
        for (owner, _), node in run.tree.nodes.items()
        if owner == problem.hash and node.decision and gate.is_bar(node.decision)
    ]
    return lost[-1] if lost else None


def race(run: Run, judge: JudgeClient, problem: Problem, verdicts: Sequence[Evaluation]) -> None:
    """Compare accepted challengers with the best so far, all in the same heats; at most one of them is kept."""
    nodes = [run.tree.nodes[problem.hash, verdict.candidate_hash] for verdict in verdicts]
    best = run.tree.nodes[problem.hash, run.tree.best[problem.hash]]
    challengers = tuple(node.candidate for node in nodes)
    earlier = tuple(_against(node, best.candidate.hash) for node in nodes)
    results = judge.race(problem, best.candidate, challengers, earlier)
    for found in results:
        if isinstance(found, Disqualified) and found.candidate_hash == best.candidate.hash:
            dethrone(run, best, found)
            race(run, judge, problem, verdicts)
            return
    told: list[Body] = []
    # The fastest is decided on first; the others have to beat it, not the one before.
    faster = [found for found in results if isinstance(found, Comparison) and _is_faster(found)]
    fastest = max(faster, key=lambda found: found.ratio, default=None)
    is_won = fastest is not None
    for verdict, node, found in zip(verdicts, nodes, results, strict=True):
        if isinstance(found, Disqualified):
            told.append(Decided(decision=gate.disqualified(verdict, found)))
            continue
        is_outrun = _is_faster(found) and found is not fastest
        decision = gate.outrun(verdict, found) if is_outrun else gate.decide(verdict, found)
        is_first = best.candidate.hash == run.tree.titles[problem.hash][0]  # it has to be beaten
        if not (is_won or is_first) and gate.is_simpler(node.candidate, best.candidate, found):
            decision, is_won = gate.simpler(verdict, found), True
        told += [Compared(comparison=found), Decided(decision=decision)]
        if decision.kept and node.candidate.parents:
            told.append(LessonLearnt(lesson=kept_lesson(run, problem, node, found)))
        elif not decision.kept:
            traps = trap_after_race(run.tree, problem, node.candidate, found)
            told += [LessonLearnt(lesson=one) for one in traps]
    run.record(told)


def _is_faster(found: Comparison) -> bool:
    return found.outcome is Outcome.FASTER


def _against(node: Node, incumbent: str) -> Comparison | None:
    earlier = [found for found in node.comparisons if found.incumbent_hash == incumbent]
    return earlier[-1] if earlier else None


def dethrone(run: Run, holder: Node, found: Disqualified) -> None:
    """Take the title from a holder that failed while it was timed; a baseline that does so ends the run."""
    is_first = run.tree.titles[holder.problem_hash][:1] == [holder.candidate.hash]
    if is_first or holder.candidate.origin is Origin.BASELINE:
        raise ServiceDied("judge", f"the baseline failed while it was timed: {found.reason}")
    run.record([Decided(decision=gate.disqualified(holder.evaluations[-1], found))])


def is_audit_due(run: Run, problem: Problem) -> bool:
    """Tell whether a few keeps have piled up since the best was last compared with the baseline itself."""
    held = run.tree.titles.get(problem.hash, [])
    if len(held) <= AUDIT_EVERY or (len(held) - 1) % AUDIT_EVERY:
        return False
    return _against(run.tree.nodes[problem.hash, held[-1]], held[0]) is None


def audit(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Compare the best with the baseline itself; roll back what does not add up."""
    held = run.tree.titles[problem.hash]
    nodes = [run.tree.nodes[problem.hash, key] for key in held]
    found = judge.compare(problem, nodes[0].candidate, nodes[-1].candidate)
    if not isinstance(found, Comparison):
        dethrone(run, nodes[-1] if found.candidate_hash == held[-1] else nodes[0], found)
        return
    told: list[Body] = [Compared(comparison=found)]
    claims = [_claim(before, node) for before, node in pairwise(nodes)]
    loss = gate.RULE.equal if any(_is_for_simplicity(*pair) for pair in pairwise(nodes)) else 1.0
    if not ratchet_agrees((found.ci_low, found.ci_high), claims, loss):
        told += [
            Decided(decision=gate.rolled_back(node.evaluations[-1], found))
            for node in nodes[: -AUDIT_EVERY - 1 : -1]
        ]
    run.record(told)


def _claim(before: Node, node: Node) -> tuple[float, float]:
    """Return the gain a keep claims over the holder before it; one for simplicity claims to be no slower."""
    kept = _won(before, node)
    if _is_faster(kept):
        return kept.ci_low, kept.ci_high
    return max(1.0, kept.ci_low), max(1.0, kept.ci_high)


def _is_for_simplicity(before: Node, node: Node) -> bool:
    return not _is_faster(_won(before, node))


def _won(before: Node, node: Node) -> Comparison:
    """Return the comparison a keep rests on; an audit's own comparison with the baseline is none."""
    return next(
        found for found in reversed(node.comparisons) if found.incumbent_hash == before.candidate.hash
    )


def confirm(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Put the best through the full profile and confirming comparisons; whoever fails loses the title."""
    while (held := run.tree.titles.get(problem.hash, []))[1:]:
        first, best = (run.tree.nodes[problem.hash, key] for key in (held[0], held[-1]))
        verdict = evaluate(run, judge, problem, best.candidate, Profile.SHIP)
        if best.decision and best.decision.evaluation_hash == verdict.hash:
            return  # confirmed before
        if verdict.status is not Status.ACCEPTED:
            run.record([Decided(decision=gate.rejected(verdict))])
            continue
        if not beats_rivals(run, judge, problem, verdict):
            continue
        found = judge.compare(problem, first.candidate, best.candidate, confirm=True)
        if not isinstance(found, Comparison):
            dethrone(run, best if found.candidate_hash == best.candidate.hash else first, found)
            continue
        run.record([Compared(comparison=found), Decided(decision=gate.confirmed(verdict, found))])


def beats_rivals(run: Run, judge: JudgeClient, problem: Problem, verdict: Evaluation) -> bool:
    """Tell whether the best is proven faster than the other baselines too; if not, it has lost its title."""
    best = run.tree.nodes[problem.hash, verdict.candidate_hash]
    proven = {found.incumbent_hash for found in best.comparisons if _is_faster(found)}
    for rival in rivals(run, problem):
        if rival.candidate.hash in proven:
            continue
        found = judge.compare(problem, rival.candidate, best.candidate)
        if not isinstance(found, Comparison):
            dethrone(run, best if found.candidate_hash == best.candidate.hash else rival, found)
            return False
        if not _is_faster(found):
            run.record([Compared(comparison=found), Decided(decision=gate.decide(verdict, found))])
            return False
        run.record([Compared(comparison=found)])
    return True


def rivals(run: Run, problem: Problem) -> Iterator[Node]:
    """Yield the accepted baselines that do not hold the title and are not far slower than the one that does."""
    first = run.tree.titles[problem.hash][0]
    least = certified_us(run.tree.nodes[problem.hash, first].evaluations[0], problem)
    for (owner, key), node in list(run.tree.nodes.items()):
        if owner != problem.hash or key == first or node.candidate.origin is not Origin.BASELINE:
            continue
        if not node.evaluations:
            continue
        verdict = node.evaluations[0]
        if verdict.status is Status.ACCEPTED and certified_us(verdict, problem) <= NEAR * least:
            yield node

"""One problem, read out of the tree: who won, by how much, at what cost, on what proof."""

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.tree import Node, Tree
from kernelwright.report.chronicle import Chronicle
from kernelwright.report.diff import change_of
from kernelwright.report.evidence import certificate, points
from kernelwright.report.measures import (
    against,
    certified_us,
    compared_us,
    floor_us,
    last_certificate,
    short_name,
)
from kernelwright.report.model import Experiment, Fate, ProblemFact, Step
from kernelwright.report.standing import Standing, fate_of, interval, standing
from kernelwright.report.usage import is_handed_over


def problem_fact(run: Chronicle, key: str) -> ProblemFact:
    """Return everything the report says of a problem."""
    tree = run.tree
    found = standing(tree, key)
    problem, proof, winner = found.problem, found.proof, found.winner
    baseline_us = certified_us(last_certificate(found.first), problem) if found.first else None
    winner_us = certified_us(last_certificate(winner), problem) if winner else None
    if proof is not None:  # both arms in the same rounds: what drifted in between cancels
        together = compared_us(proof, problem)
        baseline_us, winner_us = together[0] or baseline_us, together[1] or winner_us
    floor = next((floor_us(last_certificate(node), problem) for node in (winner, found.first) if node), None)
    best_us = winner_us or baseline_us
    tried = tree.tried.get(key)
    is_installed = _is_installed(tree, key, winner)
    search_s = run.search_s.get(key)
    return ProblemFact(
        key=key,
        name=problem.cases[0].label,
        op=problem.op,
        cases=tuple(case.label for case in problem.cases),
        count=problem.count,
        share=problem.share,
        baseline=short_name(found.first.candidate) if found.first else "",
        baseline_us=baseline_us,
        winner=short_name(found.best.candidate) if found.best else "",
        is_won=winner is not None,
        winner_us=winner_us,
        gain=interval(proof) if proof else None,
        chained=found.speed(winner.candidate.hash) if winner and not proof else None,
        in_place=found.in_place,
        floor_us=floor,
        floor_fraction=floor / best_us if floor and best_us else None,
        is_installed=is_installed,
        in_model=tried.reason if tried else "",
        search_s=search_s,
        calls_to_pay=_calls_to_pay(found, search_s, (baseline_us, winner_us), is_installed),
        search=_search(run, key),
        stopped=_stopped(tree, key),
        verdict=found.outcome or "nothing was decided",
        steps=_steps(found, run),
        experiments=tuple(_experiment(found, run, node) for node in found.nodes),
        change=change_of(tree, problem, winner.candidate if winner else None),
        certificate=certificate(found),
        points=points(found),
    )


def _is_installed(tree: Tree, key: str, winner: Node | None) -> bool:
    shipped = tree.verified is not None and tree.verified.shipped and key in tree.verified.winners
    return winner is not None and (shipped or is_handed_over(tree, key))


def _calls_to_pay(
    found: Standing, search_s: float | None, times_us: tuple[float | None, float | None], is_installed: bool
) -> float | None:
    """Return the calls after which what was spent is saved: of the model, or of the kernel where there is no model."""
    ranked, in_place = found.tree.ranked, found.in_place
    if search_s is None or found.proof is None:
        return None
    if ranked is None:
        before_us, after_us = times_us
        saved_us = before_us - after_us if before_us and after_us else 0.0
    else:
        saved_us = (
            ranked.total_us * found.problem.share * (1 - 1 / in_place) if is_installed and in_place else 0.0
        )
    return search_s * 1e6 / saved_us if saved_us > 0 else None


def _stopped(tree: Tree, key: str) -> str:
    quest = tree.quests.get(key)
    if quest and quest.ended:
        return quest.ended.reason
    return "the run has not ended" if tree.ended is None else "not written down"


def _search(run: Chronicle, key: str) -> str:
    """Return how the search went, in one sentence; empty if no strategy was asked."""
    quest = run.tree.quests.get(key)
    if quest is None or not quest.asked:
        return ""
    names = ", ".join(run.strategies.get(key, {}))
    said = f"{quest.asked} expansion{'s' * (quest.asked != 1)} asked for" + (f" by {names}" if names else "")
    if quest.barren:
        said += f", {len(quest.barren)} of them answered with nothing new"
    for reason in run.escalations.get(key, []):
        said += f"; bolder means: {reason}"
    return said


def _author(candidate: Candidate) -> str:
    author = candidate.author
    return f"{author.name} ({author.detail})" if author.detail else author.name


def _experiment(found: Standing, run: Chronicle, node: Node) -> Experiment:
    candidate, verdict = node.candidate, node.evaluations[-1] if node.evaluations else None
    proof = against(node, found.first.candidate.hash if found.first else None)
    timed = certified_us(last_certificate(node), found.problem)
    floor = floor_us(last_certificate(node), found.problem)
    return Experiment(
        number=node.seq,
        at=run.when((node.problem_hash, candidate.hash)),
        hash=candidate.hash,
        parents=candidate.parents,
        is_baseline=candidate.origin is Origin.BASELINE,
        backend=candidate.backend,
        author=_author(candidate),
        note=candidate.note,
        status=verdict.status.value if verdict else "",
        fate=fate_of(node),
        reason=node.decision.reason if node.decision else "",
        certified_us=timed,
        speed=found.speed(candidate.hash) if timed else None,
        over_baseline=interval(proof) if proof else None,
        floor_fraction=floor / timed if floor and timed else None,
        screenings=len(node.screenings),
    )


def _steps(found: Standing, run: Chronicle) -> tuple[Step, ...]:
    """Return the problem's verdicts in their order, each with the speed of whoever held the title then."""
    trials = [trial for trial in run.trials if trial.key[0] == found.problem.hash]
    steps = []
    for number, trial in enumerate(trials, 1):
        node = found.tree.nodes[trial.key]
        fate = fate_of(node)
        if trial.kept and fate is not Fate.FAILED:
            fate = Fate.KEPT
        timed = last_certificate(node)
        steps.append(
            Step(
                number=number,
                experiment=node.seq,
                fate=fate,
                is_baseline=node.candidate.origin is Origin.BASELINE,
                speed=found.speed(trial.key[1]) if timed else None,
                best=found.speed(trial.holder) if trial.holder else None,
            )
        )
    return tuple(steps)

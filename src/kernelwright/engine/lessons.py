"""Lessons without an llm: what the tree teaches, said at the moment of the decision, and what the shelf makes of it.

1. A keep gives a claim: the move or the values that did it, the scope, the effect with its interval.
2. A failure of one class seen twice gives a trap: the same way to do it ended the same way.
3. Both are journalled with the decision they follow from. At the end of a run they go to the shelf, with what the run
   saw of lessons it was given, and with the winners.
"""

import re
from collections.abc import Iterable, Iterator

from kernelwright.core.candidate import Candidate, Origin, ParamValue
from kernelwright.core.lesson import Lesson, Shape, Teaching
from kernelwright.core.problem import Problem
from kernelwright.core.search import nodes_of
from kernelwright.core.shelf import ChosenValues, EarlierWinner, Sighting
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Comparison, Evaluation, Outcome
from kernelwright.store.lessons import Findings

MOST_CLAIM = 400
MOST_REASON = 120
TWICE = 2
"""Failures of one class from which they teach something."""


def lesson_of(
    problem: Problem,
    candidate: Candidate,
    found: Comparison,
    parent: Candidate | None = None,
    waits: str = "",
) -> Lesson:
    """Return what a keep teaches about the op, with the comparison it rests on."""
    return Lesson(
        claim=claim_of(candidate, parent)[:MOST_CLAIM],
        op=problem.op,
        backend=candidate.backend,
        arch=problem.device.arch,
        bottleneck=waits or None,
        shapes=tuple(Shape.of(case) for case in problem.cases),
        ratio=found.ratio,
        ci_low=found.ci_low,
        ci_high=found.ci_high,
        move=move_of(candidate),
        values=dict(candidate.choices[-1].values),
        author=f"{candidate.author.name} {candidate.author.detail}".strip()[:MOST_CLAIM],
        candidate_hash=candidate.hash,
        parent_hash=next(iter(candidate.parents), ""),
        evaluations=(found.hash,),
    )


def move_of(candidate: Candidate) -> str:
    """Return the move a candidate was made by; empty if it was none."""
    return candidate.author.detail.partition(":")[0] if candidate.author.name == "mover" else ""


def claim_of(candidate: Candidate, parent: Candidate | None) -> str:
    """Return what was done, in words that are the same wherever it is done."""
    if candidate.author.name == "tuner":
        chosen = candidate.choices[-1].values
        before = parent.choices[-1].values if parent else {}
        changed = {name: value for name, value in chosen.items() if before.get(name) != value}
        return f"values {_listed(changed or chosen)}"
    return candidate.note or candidate.author.detail or f"a change by {candidate.author.name}"


def _listed(values: dict[str, ParamValue]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items())) or "of its own"


def trap_after_failure(
    tree: Tree, problem: Problem, candidate: Candidate, verdict: Evaluation
) -> list[Lesson]:
    """Return the trap that a second failure of one class is; nothing the first time, nor once it is known."""
    claim = failure_class(candidate, verdict)
    earlier = [
        (node, past)
        for node in _kin(tree, problem, candidate)
        for past in node.evaluations[-1:]
        if past.failure and failure_class(node.candidate, past) == claim
    ]
    return _trap(tree, problem, candidate, claim, (*(past.hash for _, past in earlier), verdict.hash))


def trap_after_race(tree: Tree, problem: Problem, candidate: Candidate, found: Comparison) -> list[Lesson]:
    """Return the trap that a move is which was proven not to pay a second time."""
    if not move_of(candidate) or found.outcome is not Outcome.NOT_FASTER:
        return []
    claim = f"{candidate.note or candidate.author.detail}: proven not faster"
    earlier = [
        past
        for node in _kin(tree, problem, candidate)
        for past in node.comparisons[-1:]
        if past.outcome is Outcome.NOT_FASTER and node.candidate.author.detail == candidate.author.detail
    ]
    return _trap(tree, problem, candidate, claim, (*(past.hash for past in earlier), found.hash))


def failure_class(candidate: Candidate, verdict: Evaluation) -> str:
    """Return what failed and how, without what differs between two failures of the same kind."""
    failure = verdict.failure
    what = candidate.author.detail if move_of(candidate) else f"a change by {candidate.author.name}"
    if failure is None:
        return f"{what}: {verdict.status.value}"
    why = re.sub(r"[^a-z ]+", " ", failure.reason.lower())
    words = " ".join(why.split())[:MOST_REASON]
    return f"{what}: {verdict.status.value} in stage {failure.stage.value}: {words}"


def _kin(tree: Tree, problem: Problem, candidate: Candidate) -> Iterator[Node]:
    """Yield the other candidates of the same op and language."""
    for (owner, own), node in tree.nodes.items():
        is_same = own == candidate.hash and owner == problem.hash
        if node.candidate.op == problem.op and node.candidate.backend == candidate.backend and not is_same:
            yield node


def _trap(
    tree: Tree, problem: Problem, candidate: Candidate, claim: str, evidence: Iterable[str]
) -> list[Lesson]:
    cited = tuple(dict.fromkeys(evidence))
    lesson = Lesson(
        claim=claim[:MOST_CLAIM],
        teaching=Teaching.TRAP,
        op=problem.op,
        backend=candidate.backend,
        arch=problem.device.arch,
        shapes=tuple(Shape.of(case) for case in problem.cases),
        move=move_of(candidate),
        author=candidate.author.name,
        candidate_hash=candidate.hash,
        parent_hash=next(iter(candidate.parents), ""),
        evaluations=cited,
    )
    known = {one.key for one in tree.lessons}
    return [lesson] if len(cited) >= TWICE and lesson.key not in known else []


def findings(tree: Tree, run_id: str) -> Findings:
    """Return what a run adds to the shelf."""
    places = _places(tree)
    learnt = []
    for lesson in tree.lessons:
        where = next((places[own] for own in lesson.evaluations if own in places), None)
        if where and (lesson.teaching is Teaching.TRAP or _stands(tree, where, lesson.candidate_hash)):
            learnt.append((lesson, _sighting(where, run_id, lesson)))
    winners = [one for key in tree.problems if (one := winner_of(tree, key, run_id))]
    seen = [*_contradictions(tree, run_id), *_of_starts(tree, run_id)]
    return Findings(learnt, seen, winners)


def _places(tree: Tree) -> dict[str, str]:
    """Return the problem of every evaluation and comparison, by hash."""
    found: dict[str, str] = {}
    for (owner, _), node in tree.nodes.items():
        found.update(dict.fromkeys((one.hash for one in node.evaluations), owner))
        found.update(dict.fromkeys((one.hash for one in node.comparisons), owner))
    return found


def _stands(tree: Tree, problem_hash: str, own: str) -> bool:
    """Tell whether what was kept still is: an audit or the last profile may have taken its title."""
    node = tree.nodes.get((problem_hash, own))
    return node is not None and node.decision is not None and node.decision.kept


def _sighting(problem_hash: str, run_id: str, lesson: Lesson) -> Sighting:
    return Sighting(
        problem_hash=problem_hash,
        run_id=run_id,
        confirms=True,
        ratio=lesson.ratio,
        ci_low=lesson.ci_low,
        ci_high=lesson.ci_high,
        evaluations=lesson.evaluations,
    )


def _against(found: Comparison, run_id: str, *, confirms: bool) -> Sighting:
    return Sighting(
        problem_hash=found.problem_hash,
        run_id=run_id,
        confirms=confirms,
        ratio=found.ratio,
        ci_low=found.ci_low,
        ci_high=found.ci_high,
        evaluations=(found.hash,),
    )


def _contradictions(tree: Tree, run_id: str) -> Iterator[tuple[str, Sighting]]:
    """Yield what speaks against a lesson: the same done elsewhere, and proven not faster; a trap that was none."""
    for (owner, _), node in tree.nodes.items():
        problem, candidate = tree.problems[owner], node.candidate
        if candidate.origin is not Origin.AUTHOR or not candidate.parents or not node.comparisons:
            continue
        found = node.comparisons[0]
        parent = tree.nodes.get((owner, candidate.parents[0]))
        gain = lesson_of(problem, candidate, found, parent.candidate if parent else None)
        if found.outcome is Outcome.NOT_FASTER:
            yield gain.key, _against(found, run_id, confirms=False)
        elif found.outcome is Outcome.FASTER and move_of(candidate):
            claim = f"{candidate.note or candidate.author.detail}: proven not faster"
            trap = gain.model_copy(update={"teaching": Teaching.TRAP, "claim": claim[:MOST_CLAIM]})
            yield trap.key, _against(found, run_id, confirms=False)


def _of_starts(tree: Tree, run_id: str) -> Iterator[tuple[str, Sighting]]:
    """Yield what the first race of an earlier winner says of the lessons it was made by."""
    for start in tree.given.starts:
        node = tree.nodes.get((start.problem_hash, start.candidate.hash))
        if node is None or not node.comparisons or node.comparisons[0].outcome is Outcome.NOT_PROVEN:
            continue
        found = node.comparisons[0]
        for key in start.lessons:
            yield key, _against(found, run_id, confirms=found.outcome is Outcome.FASTER)


def winner_of(tree: Tree, key: str, run_id: str) -> EarlierWinner | None:
    """Return a problem's best for the shelf, if it is proven faster than the baseline."""
    held, problem = tree.titles.get(key, []), tree.problems[key]
    if len(held) < TWICE:
        return None
    node = tree.nodes[key, held[-1]]
    proofs = [
        one for one in node.comparisons if one.incumbent_hash == held[0] and one.outcome is Outcome.FASTER
    ]
    if not proofs or node.candidate.origin is not Origin.AUTHOR:
        return None
    shapes = {case.hash: Shape.of(case) for case in problem.cases}
    rows = [
        ChosenValues(
            shapes=tuple(shapes[own] for own in choice.case_hashes if own in shapes), values=choice.values
        )
        for choice in node.candidate.choices
        if not choice.case_hashes or any(own in shapes for own in choice.case_hashes)
    ]
    line = {one.candidate.hash for one in nodes_of(tree, key) if one.candidate.hash in held}
    return EarlierWinner(
        op=problem.op,
        backend=node.candidate.backend,
        arch=problem.device.arch,
        device=problem.device.name,
        reference=problem.reference,
        shapes=tuple(shapes.values()),
        source=node.candidate.source,
        choices=tuple(rows),
        note=node.candidate.note,
        ratio=proofs[-1].ratio,
        ci_low=proofs[-1].ci_low,
        ci_high=proofs[-1].ci_high,
        judge_version=proofs[-1].judge_version,
        run_id=run_id,
        evaluations=(proofs[-1].hash,),
        lessons=_line_lessons(tree, line),
    )


def _line_lessons(tree: Tree, line: set[str]) -> tuple[str, ...]:
    """Return the keys of the gains that titles in a line taught, and of those they were given with."""
    own = [one.key for one in tree.lessons if one.candidate_hash in line and one.teaching is Teaching.GAIN]
    given = [key for start in tree.given.starts if start.candidate.hash in line for key in start.lessons]
    return tuple(dict.fromkeys((*given, *own)))

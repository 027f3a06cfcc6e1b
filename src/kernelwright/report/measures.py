"""What every artefact needs to know of a problem or a verdict: times over its cases, floors, the work they do."""

from collections.abc import Mapping

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate
from kernelwright.core.errors import BrokenPlugin, UnknownName
from kernelwright.core.problem import Problem
from kernelwright.core.roofline import Work
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Comparison, Evaluation, Status

BASELINES = {"eager": "eager", "compiled": "torch.compile"}
"""What people call the baselines."""


def weighted(problem: Problem, values: Mapping[str, float]) -> float | None:
    """Return the mean of a value over a problem's cases by their weights; None unless every case has one."""
    if any(case.hash not in values for case in problem.cases):
        return None
    total = sum(case.weight for case in problem.cases)
    return sum(case.weight * values[case.hash] for case in problem.cases) / total


def certified_us(verdict: Evaluation | None, problem: Problem) -> float | None:
    """Return the certified time of a call; None without a certificate."""
    if verdict is None or verdict.timing is None:
        return None
    return weighted(problem, {one.case_hash: one.median_us for one in verdict.timing.cases})


def floor_us(verdict: Evaluation | None, problem: Problem) -> float | None:
    """Return the floor of a call as the judge wrote it down; None where it knows none."""
    if verdict is None or verdict.timing is None:
        return None
    known = {one.case_hash: one.floor_us for one in verdict.timing.cases if one.floor_us is not None}
    return weighted(problem, known)


def compared_us(found: Comparison, problem: Problem) -> tuple[float | None, float | None]:
    """Return the times of incumbent and challenger in the same rounds."""
    return (
        weighted(problem, {one.case_hash: one.incumbent_us for one in found.cases}),
        weighted(problem, {one.case_hash: one.challenger_us for one in found.cases}),
    )


def work_of(problem: Problem) -> dict[str, Work]:
    """Return what each case must do, by case hash; nothing for an op that is not here or does not say."""
    try:
        op = plugins.load("ops", problem.op)
    except (UnknownName, BrokenPlugin):
        return {}
    if not hasattr(op, "work"):
        return {}
    return {case.hash: op.work(case) for case in problem.cases}


def last_certificate(node: Node) -> Evaluation | None:
    """Return the last verdict that certified times."""
    return next((one for one in reversed(node.evaluations) if one.timing), None)


def baselines(tree: Tree) -> dict[str, str]:
    """Return the baseline that was to be beaten by problem: who held the title first, else who was first accepted."""
    found = {key: held[0] for key, held in tree.titles.items() if held}
    for (problem_hash, candidate_hash), node in tree.nodes.items():
        if node.evaluations and node.evaluations[-1].status is Status.ACCEPTED:
            found.setdefault(problem_hash, candidate_hash)
    return found


def against(node: Node, baseline: str | None) -> Comparison | None:
    """Return the last comparison of a node with the baseline itself."""
    return next((one for one in reversed(node.comparisons) if one.incumbent_hash == baseline), None)


def short_name(candidate: Candidate) -> str:
    """Return what a candidate is called in a table: a baseline by its name, others by language and author."""
    if candidate.backend in BASELINES:
        return BASELINES[candidate.backend]
    return f"{candidate.backend} by {candidate.author.name}"

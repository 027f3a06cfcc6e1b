"""The winner against the seed it descends from: sources as a unified diff, chosen parameters beside it."""

import difflib

from kernelwright.core.candidate import Candidate, Origin, ParamValue
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Tree
from kernelwright.report.measures import short_name
from kernelwright.report.model import Change, Parameter

NOTHING = "A baseline holds the title: there is no winner to compare."


def seed_of(tree: Tree, problem_hash: str, candidate_hash: str) -> Candidate:
    """Return the first ancestor of a candidate along its first parents; itself if it has none in the run."""
    seen = {candidate_hash}
    found = tree.nodes[problem_hash, candidate_hash].candidate
    while found.parents and (above := tree.nodes.get((problem_hash, found.parents[0]))):
        if above.candidate.hash in seen or above.candidate.origin is Origin.BASELINE:
            break
        seen.add(above.candidate.hash)
        found = above.candidate
    return found


def change_of(tree: Tree, problem: Problem, winner: Candidate | None) -> Change:
    """Return how a winner differs from its seed."""
    if winner is None or winner.origin is Origin.BASELINE:
        return Change(seed="", words=NOTHING)
    seed = seed_of(tree, problem.hash, winner.hash)
    if seed.hash == winner.hash:
        return Change(seed="", words="The winner is the seed itself, unchanged: there is nothing to compare.")
    parameters = changed_parameters(problem, seed, winner)
    text = unified(seed.source, winner.source)
    name = short_name(seed)
    if seed.backend != winner.backend:
        words = f"The winner is written in {winner.backend}, its seed in {seed.backend}."
    elif text:
        added, removed = _counted(text)
        words = f"{added} lines added, {removed} removed since the seed ({name})."
    else:
        words = f"The source is the seed's ({name}); only parameters were chosen otherwise."
    return Change(seed=name, words=words, diff=text, parameters=parameters)


def unified(before: str, after: str) -> str:
    """Return the unified diff of two sources; empty if they are the same."""
    # Not `splitlines`: a form feed or another of Unicode's line ends inside a line would be a line of its own.
    lines = difflib.unified_diff(
        before.split("\n"), after.split("\n"), fromfile="seed", tofile="winner", lineterm=""
    )
    return "\n".join(lines)


def changed_parameters(problem: Problem, seed: Candidate, winner: Candidate) -> tuple[Parameter, ...]:
    """Return every parameter that has another value than in the seed, and the cases where it has."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for case in problem.cases:
        before, after = seed.values_for(case.hash), winner.values_for(case.hash)
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                key = (name, _said(before.get(name)), _said(after.get(name)))
                rows.setdefault(key, []).append(case.label)
    return tuple(
        Parameter(name=name, cases=", ".join(labels), before=before, after=after)
        for (name, before, after), labels in rows.items()
    )


def _said(value: ParamValue | None) -> str:
    return "none" if value is None else str(value)


def _counted(text: str) -> tuple[int, int]:
    body = text.split("\n")[2:]
    return sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body)

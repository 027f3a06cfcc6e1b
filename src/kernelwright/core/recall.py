"""What an author is told of the tree: the memory modes, and the part of a `Brief` that follows from the tree alone."""

import math
from typing import Literal

from kernelwright.core.brief import Attempt, Brief
from kernelwright.core.difference import change_of
from kernelwright.core.expansion import Expansion, Memory
from kernelwright.core.normal import known_keys
from kernelwright.core.search import Speeds, failure_of, last_verdict, speeds
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Screening

MAX_ATTEMPTS = 12
"""Attempts of one relation an author is told of, the latest ones."""


def brief_of(tree: Tree, expansion: Expansion, seed: int) -> Brief:
    """Return the brief of an expansion as far as the tree knows it; contract, cards and diagnoses come on top."""
    problem = tree.problems[expansion.problem_hash]
    nodes = [tree.nodes[problem.hash, parent] for parent in expansion.parents]
    own, kin = _screenings(tree, expansion)
    wanted = {look.case_hash for look in (*own, *kin)} - {case.hash for case in problem.cases}
    others = {case.hash: case for other in tree.problems.values() for case in other.cases}
    return Brief(
        problem=problem,
        parents=tuple(node.candidate for node in nodes),
        evaluations=tuple(verdict for node in nodes if (verdict := last_verdict(node))),
        memory=expansion.memory,
        hint=expansion.hint,
        bold=expansion.bold,
        diagnosis=expansion.diagnosis,
        attempts=remembered(tree, expansion),
        screenings=own,
        kin_screenings=kin,
        cases=tuple(others[name] for name in sorted(wanted) if name in others),
        known=tuple(known_keys(tree, problem.hash)),
        seed=seed,
    )


def _screenings(tree: Tree, expansion: Expansion) -> tuple[tuple[Screening, ...], tuple[Screening, ...]]:
    """Return the looks at the first parent's source, and at the sources of its ancestors and the other parents."""
    lines = [line_of(tree, expansion.problem_hash, parent) for parent in expansion.parents]
    sources = [node.candidate.source for line in lines for node in line]
    own: list[Screening] = []
    kin: list[Screening] = []
    for node in tree.nodes.values():
        if node.screenings and node.candidate.source in sources:
            (own if node.candidate.source == sources[0] else kin).extend(node.screenings)
    return tuple(own), tuple(kin)


def remembered(tree: Tree, expansion: Expansion) -> tuple[Attempt, ...]:
    """Return what the memory mode of an expansion has an author told of earlier attempts."""
    if not expansion.parents or expansion.memory is Memory.CLEAN:
        return ()
    measured, problem = speeds(tree, expansion.problem_hash), expansion.problem_hash
    told: list[Attempt] = []
    if expansion.memory in (Memory.INHERIT, Memory.BOTH):
        line = line_of(tree, problem, expansion.parents[0])[1:][:MAX_ATTEMPTS]
        told += [_attempt(tree, node, "ancestor", measured) for node in reversed(line)]
    if expansion.memory in (Memory.SIBLINGS, Memory.BOTH):
        children = [
            tree.nodes[problem, child]
            for parent in expansion.parents
            if (problem, parent) in tree.nodes
            for child in tree.nodes[problem, parent].children
            if child not in expansion.parents
        ]
        distinct = sorted({node.seq: node for node in children}.items())[-MAX_ATTEMPTS:]
        told += [_attempt(tree, node, "sibling", measured) for _, node in distinct]
    return tuple(told)


def line_of(tree: Tree, problem: str, own: str) -> list[Node]:
    """Return a node and its first parents up to the seed."""
    line: list[Node] = []
    while (node := tree.nodes.get((problem, own))) and node not in line:
        line.append(node)
        own = next(iter(node.candidate.parents), "")
    return line


def _attempt(tree: Tree, node: Node, relation: Literal["ancestor", "sibling"], measured: Speeds) -> Attempt:
    candidate, verdict = node.candidate, last_verdict(node)
    failed = failure_of(node)
    speed = None if failed else measured.certified(candidate.hash)
    reason = node.decision.reason if node.decision else ""
    if not reason and verdict and verdict.failure:
        reason = verdict.failure.reason
    above = tree.nodes.get((node.problem_hash, next(iter(candidate.parents), "")))
    status = failed or (verdict.status if verdict else None)
    return Attempt(
        candidate_hash=candidate.hash,
        relation=relation,
        author=candidate.author,
        note=candidate.note,
        status=status,
        reason=reason,
        speed=None if speed is None else math.exp(speed),
        choices=candidate.choices,
        change=change_of(above.candidate, candidate) if above else "",
    )

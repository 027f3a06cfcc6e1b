"""What a search reads out of the tree: how good every node is, how often it was tried.

Speed counts from the baseline: ln(baseline time / own time). Only certified speed is a reward; a screening is a guess
that may guide, and a failure has a penalty of its own, so that a near miss is worth more than a crash.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kernelwright.core.candidate import Origin
from kernelwright.core.expansion import Allowance
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Evaluation, Profile, Status

NEAR_MISSES = frozenset({Status.WRONG, Status.NOT_WRITTEN, Status.UNSUPPORTED, Status.NOT_DETERMINISTIC})
UNBUILT = frozenset({Status.REFUSED, Status.BUILD_FAILED, Status.BUILD_TIMED_OUT, Status.TOO_BIG})
NEAR_MISS_PENALTY, UNBUILT_PENALTY, CRASH_PENALTY = -0.5, -1.0, -1.5
"""In units of ln(speed): a wrong answer ranks like a kernel 1.6 times slower than the baseline, a crash like 4.5."""


class Certainty(StrEnum):
    """How much is known of a node."""

    CERTIFIED = "certified"
    """Accepted by the judge, with certified times."""
    SCREENED = "screened"
    """Looked at, not proven."""
    FAILED = "failed"
    """Not accepted, or found out while it was timed."""
    PENDING = "pending"
    """Proposed, and nothing is known yet."""


@dataclass(frozen=True)
class Prospect:
    """A node as a search sees it."""

    node: Node
    certainty: Certainty
    log_speed: float
    """ln(baseline time / own time), a guess if only screened; the penalty of a failure; 0 while pending."""
    tries: int
    """How often it was expanded as the first parent: children, expansions under way, and those in vain."""

    @property
    def hash(self) -> str:
        """Return the candidate's hash."""
        return self.node.candidate.hash


@dataclass
class Speeds:
    """ln(speed over the baseline) of the nodes of one problem, each worked out once."""

    tree: Tree
    problem: Problem
    baseline_us: Mapping[str, float]
    """Certified time of the baseline by case hash."""
    known: dict[str, float | None] = field(default_factory=dict)

    def certified(self, own: str, asking: frozenset[str] = frozenset()) -> float | None:
        """Return the certified speed of a node: along its comparisons to the baseline, else from its times alone."""
        if own in self.known:
            return self.known[own]
        node = self.tree.nodes[self.problem.hash, own]
        found = self._compared(node, asking | {own})
        if found is None:
            found = self._timed(node)
        if not asking:
            self.known[own] = found
        return found

    def _compared(self, node: Node, asking: frozenset[str]) -> float | None:
        """Return the speed by the last comparison: both arms ran in the same heats, so drift cancels."""
        for comparison in reversed(node.comparisons):
            above = comparison.incumbent_hash
            if above in asking or (self.problem.hash, above) not in self.tree.nodes:
                continue
            incumbent = self.certified(above, asking)
            if incumbent is not None:
                return incumbent + math.log(comparison.ratio)
        return None

    def _timed(self, node: Node) -> float | None:
        timing = next((one.timing for one in reversed(node.evaluations) if one.timing), None)
        return None if timing is None else self._over({one.case_hash: one.median_us for one in timing.cases})

    def screened(self, node: Node) -> float | None:
        """Return the speed that the looks at a node's own parameters suggest."""
        looks: dict[str, float] = {}
        for look in node.screenings:
            own = node.candidate.values_for(look.case_hash)
            if look.latency_us and look.status is Status.ACCEPTED and look.values == own:
                looks[look.case_hash] = min(look.latency_us, looks.get(look.case_hash, math.inf))
        return self._over(looks)

    def _over(self, times_us: Mapping[str, float]) -> float | None:
        """Return the weighted mean of ln(baseline / time) over the cases both have."""
        shared = [
            case for case in self.problem.cases if case.hash in times_us and case.hash in self.baseline_us
        ]
        total = sum(case.weight for case in shared)
        if not total:
            return None
        parts = [case.weight * math.log(self.baseline_us[case.hash] / times_us[case.hash]) for case in shared]
        return sum(parts) / total


def speeds(tree: Tree, problem_hash: str) -> Speeds:
    """Return the speeds of a problem's nodes over its baseline."""
    problem = tree.problems[problem_hash]
    nodes = sorted(
        nodes_of(tree, problem_hash), key=lambda node: node.candidate.origin is not Origin.BASELINE
    )
    for node in nodes:
        for verdict in reversed(node.evaluations):
            if verdict.timing:
                return Speeds(tree, problem, {one.case_hash: one.median_us for one in verdict.timing.cases})
    return Speeds(tree, problem, {})


def nodes_of(tree: Tree, problem_hash: str) -> list[Node]:
    """Return the nodes of a problem in the order they were proposed."""
    return [node for (problem, _), node in tree.nodes.items() if problem == problem_hash]


def failure_of(node: Node) -> Status | None:
    """Return how a node failed; None if it did not, or if nothing is known yet."""
    verdict = last_verdict(node)
    if verdict is not None and verdict.status is not Status.ACCEPTED:
        return verdict.status
    decision = node.decision
    if verdict and decision and not decision.kept and decision.comparison_hash is None:
        word = decision.reason.partition(":")[0]
        return Status(word) if word in list(Status) else Status.CRASHED  # found out while it was timed
    looked = [look.status for look in node.screenings if look.values in _own_values(node)]
    if verdict is None and looked and Status.ACCEPTED not in looked:
        return looked[-1]
    return None


def last_verdict(node: Node) -> Evaluation | None:
    """Return the last verdict; a quick look that passed is none."""
    for verdict in reversed(node.evaluations):
        if verdict.profile is not Profile.QUICK or verdict.status is not Status.ACCEPTED:
            return verdict
    return None


def _own_values(node: Node) -> list[dict[str, bool | int | float | str]]:
    return [choice.values for choice in node.candidate.choices]


def penalty(status: Status) -> float:
    """Return what a failure is worth, in ln(speed)."""
    if status in NEAR_MISSES:
        return NEAR_MISS_PENALTY
    return UNBUILT_PENALTY if status in UNBUILT else CRASH_PENALTY


def prospects(tree: Tree, budget: Allowance) -> dict[str, Prospect]:
    """Return every author's node of the problem by candidate hash, in the order they were proposed."""
    measured, tries = speeds(tree, budget.problem_hash), tried(tree, budget)
    found: dict[str, Prospect] = {}
    for node in nodes_of(tree, budget.problem_hash):
        if node.candidate.origin is Origin.BASELINE:
            continue
        own = node.candidate.hash
        certainty, value = _worth(node, measured)
        found[own] = Prospect(node, certainty, value, tries[own])
    return found


def _worth(node: Node, measured: Speeds) -> tuple[Certainty, float]:
    if failed := failure_of(node):
        return Certainty.FAILED, penalty(failed)
    if (speed := measured.certified(node.candidate.hash)) is not None:
        return Certainty.CERTIFIED, speed
    if (guess := measured.screened(node)) is not None:
        return Certainty.SCREENED, guess
    return Certainty.PENDING, 0.0


def tried(tree: Tree, budget: Allowance) -> Counter[str]:
    """Return how often each node was expanded as the first parent, expansions under way and in vain included."""
    firsts = [node.candidate.parents[:1] for node in nodes_of(tree, budget.problem_hash)]
    asked = [one.parents[:1] for one in (*budget.pending, *budget.barren)]
    return Counter(parent for first in (*firsts, *asked) for parent in first)


def ranked(found: Iterable[Prospect]) -> list[Prospect]:
    """Return what can be expanded, best first: certified, then screened, then the least bad failure."""
    order = {Certainty.CERTIFIED: 0, Certainty.SCREENED: 1, Certainty.FAILED: 2}
    known = [one for one in found if one.certainty in order]
    return sorted(known, key=lambda one: (order[one.certainty], -one.log_speed, one.node.seq))


def rng_at(tree: Tree, budget: Allowance, seed: int) -> random.Random:
    """Return the randomness of the next choice: a resumed run draws what the uninterrupted one would have drawn."""
    # Whoever answers has no say in what is drawn: one author draws what a crew draws. Older journals lack the others.
    silent = {"worker", "bold", "backend"}
    asked = [one.model_dump(mode="json", exclude=silent) for one in (*budget.pending, *budget.barren)]
    sizes = [seed, budget.problem_hash, tree.steps, budget.expansions]
    return random.Random(int(digest(canonical_json([sizes, asked])), 16))

"""How a problem stands: its baseline, its best, and how fast everybody is."""

import math
from dataclasses import dataclass

from kernelwright.core.candidate import Origin
from kernelwright.core.problem import Problem
from kernelwright.core.search import Speeds, failure_of, last_verdict, nodes_of, speeds
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Comparison, Status
from kernelwright.report.measures import against, baselines
from kernelwright.report.model import Fate, Interval


@dataclass(frozen=True)
class Standing:
    """A problem with its nodes, its baseline and its best."""

    tree: Tree
    problem: Problem
    nodes: tuple[Node, ...]
    first: Node | None
    """The baseline that was to be beaten."""
    best: Node | None
    measured: Speeds

    def speed(self, candidate_hash: str) -> float | None:
        """Return the baseline's time over a candidate's, along the comparisons."""
        own = self.measured.certified(candidate_hash)
        base = self.measured.certified(self.first.candidate.hash) if self.first else None
        return None if own is None or base is None else math.exp(own - base)

    @property
    def winner(self) -> Node | None:
        """Return the best if it is no baseline, nor the file that was to be beaten."""
        if self.best is None or self.best is self.first:
            return None
        return self.best if self.best.candidate.origin is not Origin.BASELINE else None

    @property
    def outcome(self) -> str:
        """Return the gate's sentence on the winner; where a baseline holds the title, on the fastest who wanted it."""
        if self.winner and self.winner.decision:
            return self.winner.decision.reason
        judged = [node for node in self.nodes if node.decision]
        challengers = [node for node in judged if node.candidate.origin is not Origin.BASELINE]
        # Of those without a time, and of equals, the last.
        told = max(reversed(challengers or judged), key=self._fast, default=None)
        return told.decision.reason if told and told.decision else ""

    def _fast(self, node: Node) -> float:
        return self.speed(node.candidate.hash) or 0.0

    @property
    def proof(self) -> Comparison | None:
        """Return the winner's direct comparison with the baseline."""
        if self.winner is None or self.first is None:
            return None
        return against(self.winner, self.first.candidate.hash)

    @property
    def in_place(self) -> float | None:
        """Return the winner's speed over what the shares of the model's time are of: eager, or torch.compile."""
        if self.winner is None:
            return None
        name = self.tree.ranked.against.value if self.tree.ranked else None
        rivals = [node for node in self.nodes if node.candidate.origin is Origin.BASELINE]
        for rival in (node.candidate for node in rivals if node.candidate.backend == name):
            if direct := against(self.winner, rival.hash):
                return direct.ratio
            own, other = self.speed(self.winner.candidate.hash), self.speed(rival.hash)
            if own and other:
                return own / other
        return self.speed(self.winner.candidate.hash)


def standing(tree: Tree, key: str) -> Standing:
    """Return how a problem stands."""
    first, best = baselines(tree).get(key), tree.best.get(key)
    return Standing(
        tree=tree,
        problem=tree.problems[key],
        nodes=tuple(nodes_of(tree, key)),
        first=tree.nodes[key, first] if first else None,
        best=tree.nodes[key, best] if best else None,
        measured=speeds(tree, key),
    )


def fate_of(node: Node) -> Fate:
    """Return what became of a candidate."""
    decision, verdict = node.decision, last_verdict(node)
    if decision is not None and decision.kept:
        return Fate.KEPT
    if verdict is None:
        return Fate.OPEN if failure_of(node) is None else Fate.FAILED
    if verdict.status is not Status.ACCEPTED:
        return Fate.FAILED
    if decision is None:
        return Fate.OPEN
    # Found out while it was timed: the gate's sentence then begins with the status.
    is_found_out = decision.reason.partition(":")[0] in list(Status)
    return Fate.FAILED if is_found_out else Fate.REVERTED


def interval(found: Comparison) -> Interval:
    """Return a comparison's ratio with its interval."""
    return Interval(ratio=found.ratio, low=found.ci_low, high=found.ci_high)

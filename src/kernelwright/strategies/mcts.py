"""Monte Carlo tree search over candidates: UCT with the best value of a subtree backed up.

1. From the seeds downwards, take the child with the highest upper bound: the best value found below it plus what is
   not yet known of it.
2. Stop where a node may have one more child: their number grows with the root of the visits (progressive widening).
3. Ask for that child. Until it is judged it counts as a visit without a value, so the next walk, by this or by another
   worker, goes elsewhere.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.search import Certainty, Prospect, prospects, ranked
from kernelwright.core.tree import Tree
from kernelwright.strategies._shared import expand, first_drafts

SUMMARY = "UCT over the tree, best value backed up, progressive widening"
EXPLORATION = 0.1
"""Weight of what is not known; values are scaled to [0, 1]. On the recorded softmax and reduce of a CPU, 0.1 is ahead
of 0.5 after 8, 12 and 16 decisions."""
WIDENING, WIDENING_POWER = 1.0, 0.5
"""A node of n visits may have WIDENING * n ** WIDENING_POWER children, and always one."""
LEAST_SPAN = 0.25
"""In ln(speed): kernels that differ less than this are not told apart by the whole scale."""
MENDINGS = 2
"""Children of a kernel that failed: each is an attempt to mend it."""


@dataclass
class Place:
    """A node of the walk: what was found below it and how often it was visited."""

    prospect: Prospect | None
    """None for the common parent of all seeds."""
    children: list["Place"] = field(default_factory=list)
    added: int = 0
    """Expansions asked for that are no node yet."""
    visits: int = 0
    value: float = -math.inf

    @property
    def may_widen(self) -> bool:
        """Tell whether one more child is due."""
        if self.prospect is None or self.prospect.certainty is Certainty.PENDING:
            return False
        born = len(self.children) + self.added
        if self.prospect.certainty is Certainty.FAILED:
            return born < MENDINGS
        return born < WIDENING * math.pow(max(1, self.visits), WIDENING_POWER)


def choose(tree: Tree, budget: Allowance, rng: random.Random) -> list[Expansion]:
    """Return expansions, each chosen with the ones before it pending."""
    found = prospects(tree, budget)
    root = _root(found, budget)
    chosen: list[Expansion] = []
    for _ in range(budget.expansions):
        path = _walk(root, rng)
        if path is None:
            break
        parent = path[-1].prospect
        assert parent is not None, "the walk ends at a node"
        chosen.append(expand(budget, parent, sum(one.parents[0] == parent.hash for one in chosen)))
        path[-1].added += 1
        for place in path:
            place.visits += 1
    if chosen or budget.pending or Certainty.PENDING in {one.certainty for one in found.values()}:
        return chosen
    # Every kernel failed and was mended in vain, or everything near them was tried: start again from the best.
    again = [expand(budget, one, memory=Memory.CLEAN) for one in ranked(found.values())[: budget.expansions]]
    return again or first_drafts(budget, found)


def _root(found: dict[str, Prospect], budget: Allowance) -> Place:
    """Return the tree as the walk needs it: visits and best values backed up, pending expansions counted."""
    root, places = Place(None), {own: Place(one) for own, one in found.items()}
    scaled = _scaled(found)
    lineage: dict[str, list[Place]] = {}
    for own, place in places.items():  # in the order of proposal: parents come first
        above = next((parent for parent in found[own].node.candidate.parents if parent in lineage), None)
        line = lineage[above] if above else [root]
        line[-1].children.append(place)
        lineage[own] = [*line, place]
        for one in lineage[own]:
            one.visits += 1
            one.value = max(one.value, scaled.get(own, -math.inf))
    for expansion in (*budget.pending, *budget.barren):
        for place in lineage.get(next(iter(expansion.parents), ""), []):
            place.visits += 1
            place.added += place is lineage[expansion.parents[0]][-1]
    return root


def _scaled(found: dict[str, Prospect]) -> dict[str, float]:
    """Return every known value on a scale from 0 (the worst kernel that works) to 1; failures lie below it."""
    known = {own: one for own, one in found.items() if one.certainty is not Certainty.PENDING}
    speeds = [one.log_speed for one in known.values() if one.certainty is not Certainty.FAILED]
    low, high = (min(speeds), max(speeds)) if speeds else (0.0, 0.0)
    span = max(high - low, LEAST_SPAN)
    return {
        own: one.log_speed if one.certainty is Certainty.FAILED else (one.log_speed - low) / span
        for own, one in known.items()
    }


def _walk(root: Place, rng: random.Random) -> list[Place] | None:
    """Return the way from the root to a node that may have one more child; None if there is none."""
    path = [root]
    while not path[-1].may_widen:
        open_children = [child for child in path[-1].children if _is_open(child)]
        if not open_children:
            return None
        path.append(_likeliest(path[-1], open_children, rng))
    return path


def _is_open(place: Place) -> bool:
    """Tell whether a node below may be expanded."""
    stack = [place]
    while stack:
        one = stack.pop()
        if one.may_widen:
            return True
        stack += one.children
    return False


def _likeliest(parent: Place, children: Sequence[Place], rng: random.Random) -> Place:
    """Return the child with the highest upper bound; equals are drawn."""

    def bound(child: Place) -> float:
        # A subtree of which nothing is known yet is taken to be middling: its visits alone speak against it.
        value = child.value if math.isfinite(child.value) else 0.5
        return value + EXPLORATION * math.sqrt(math.log(max(parent.visits, 2)) / max(child.visits, 1))

    best = max(bound(child) for child in children)
    return rng.choice([child for child in children if bound(child) >= best - 1e-12])

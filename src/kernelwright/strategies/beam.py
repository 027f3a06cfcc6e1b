"""Beam: the best few kernels side by side, several distinct diagnoses each.

A node is in the beam until each of its diagnoses was worked on once; then the next best takes its place, and when all
had their turn the next lap begins. Slower kernels that are correct stay in the tree: a beam never fills up with copies
of its best.
"""

import random
from collections.abc import Sequence
from itertools import chain, zip_longest

from kernelwright.core.expansion import Allowance, Expansion
from kernelwright.core.search import Certainty, Prospect, prospects, ranked
from kernelwright.core.tree import Tree
from kernelwright.strategies._shared import expand, fertile, first_drafts

SUMMARY = "the best few kernels side by side, several diagnoses each"
WIDTH = 3
DIAGNOSES = 3
MENDINGS = 1
"""Attempts to mend a kernel that failed."""


def choose(tree: Tree, budget: Allowance, rng: random.Random) -> list[Expansion]:  # noqa: ARG001 - nothing is drawn
    """Return one expansion of every node in the beam, then a second of each, while there is room."""
    found = prospects(tree, budget)
    order = fertile(ranked(found.values()), budget)
    if not order:
        return first_drafts(budget, found)
    rooms = _rooms(order)
    beam = [one for one in order if rooms[one.hash]][:WIDTH]
    rows = [[expand(budget, one, offset) for offset in range(rooms[one.hash])] for one in beam]
    turns = chain.from_iterable(zip_longest(*rows))
    chosen = [one for one in turns if one is not None][: budget.expansions]
    if len(chosen) < budget.expansions:  # more room than the beam is wide: its best goes on
        first = beam[0]
        more = range(rooms[first.hash], rooms[first.hash] + budget.expansions - len(chosen))
        chosen += [expand(budget, first, offset) for offset in more]
    return chosen


def _rooms(order: Sequence[Prospect]) -> dict[str, int]:
    """Return how many diagnoses of each node are left in this lap; when all are spent, the next lap begins."""
    working = [one for one in order if one.certainty is not Certainty.FAILED]
    lap = min((one.tries // DIAGNOSES for one in working), default=0)
    rooms = {one.hash: max(0, DIAGNOSES * (lap + 1) - one.tries) for one in working}
    for one in order:
        if one.certainty is Certainty.FAILED:
            rooms[one.hash] = max(0, MENDINGS - one.tries) if working else DIAGNOSES
    return rooms

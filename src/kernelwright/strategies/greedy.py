"""The classic loop: always from the best kernel, one diagnosis after the other."""

import random

from kernelwright.core.expansion import Allowance, Expansion
from kernelwright.core.search import Certainty, Prospect, prospects, ranked
from kernelwright.core.tree import Tree
from kernelwright.strategies._shared import expand, fertile, first_drafts

SUMMARY = "always from the best kernel, one diagnosis after the other"


def choose(tree: Tree, budget: Allowance, rng: random.Random) -> list[Expansion]:  # noqa: ARG001 - nothing is drawn
    """Return expansions of the best node, each with a diagnosis of its own."""
    found = prospects(tree, budget)
    best = _best(tree, budget, found)
    if best is None:
        return first_drafts(budget, found)
    return [expand(budget, best, offset) for offset in range(budget.expansions)]


def _best(tree: Tree, budget: Allowance, found: dict[str, Prospect]) -> Prospect | None:
    """Return the title holder; the next best while the baseline holds the title, or when nothing more comes of it."""
    order = fertile(ranked(found.values()), budget)
    holder = found.get(tree.best.get(budget.problem_hash, ""))
    if holder and holder.certainty is Certainty.CERTIFIED and any(one is holder for one in order):
        return holder
    return next(iter(order), None)

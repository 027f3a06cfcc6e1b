"""The yardstick of the searches: a fresh start anywhere, every time, with no regard to what was found."""

import random

from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.search import prospects
from kernelwright.core.tree import Tree

SUMMARY = "anywhere, every time"


def choose(tree: Tree, budget: Allowance, rng: random.Random) -> list[Expansion]:
    """Return clean starts from kernels drawn at random."""
    parents = list(prospects(tree, budget))
    return [
        Expansion(problem_hash=budget.problem_hash, parents=(rng.choice(parents),), memory=Memory.CLEAN)
        for _ in range(budget.expansions)
    ]

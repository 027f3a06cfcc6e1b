"""Evolution on islands, each with a map of elites: the best kernel of every kind of behaviour, not only the best one.

1. Children of the seeds found the islands, in turn; a lineage stays on the island of its first parent.
2. The island with the fewest births is next. A parent is drawn from its elites: one per cell of tile size, depth,
   bytes and switches, so that slow but different kernels live on.
3. Now and then two elites are crossed; at regular intervals an island crosses its best with its neighbour's best,
   which is how a good idea migrates; an island that has not improved for long, or whose elites have nothing more to
   give, starts again from a seed.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.search import Certainty, Prospect, prospects, ranked
from kernelwright.core.tree import Tree
from kernelwright.strategies._behaviour import Cell, cell
from kernelwright.strategies._shared import expand, fertile, first_drafts

SUMMARY = "islands with a map of elites each, crossover and migration"
ISLANDS = 3
CROSSOVER = 0.25
"""Share of births that have two parents."""
FAVOUR_BEST = 0.6
"""Share of the other births that come from the island's best; the rest from any of its elites."""
MIGRATE_EVERY = 6
"""Births of an island between two crossings with its neighbour's best."""
STALE = 10
"""Births without a better one after which an island starts again from a seed."""


@dataclass
class Island:
    """One population."""

    members: list[Prospect] = field(default_factory=list)
    births: int = 0
    """Members, and expansions under way or in vain."""

    def elites(self) -> dict[Cell, Prospect]:
        """Return the best of each cell; a certified kernel goes before any that was only looked at."""
        found: dict[Cell, Prospect] = {}
        for one in ranked(self.members):
            if one.certainty is not Certainty.FAILED:
                found.setdefault(cell(one.node.candidate), one)
        return found

    @property
    def is_stale(self) -> bool:
        """Tell whether the best member is followed by many that are no better."""
        best = next(iter(ranked(self.members)), None)
        if best is None:
            return False
        later = [one for one in self.members if one.node.seq > best.node.seq]
        # Every STALE births without progress, one restart: not a restart for good.
        return len(later) > 0 and len(later) % STALE == 0


def choose(tree: Tree, budget: Allowance, rng: random.Random) -> list[Expansion]:
    """Return births, each on the island that had the fewest so far."""
    found = prospects(tree, budget)
    seeds = ranked(one for one in found.values() if _is_seed(one, found)) or ranked(found.values())
    able = {one.hash for one in fertile(ranked(found.values()), budget)}
    if not seeds:
        return first_drafts(budget, found)
    islands = _islands(found, budget)
    planned: Counter[str] = Counter()
    chosen: list[Expansion] = []
    for _ in range(budget.expansions):
        place = min(range(ISLANDS), key=lambda number: (islands[number].births, number))
        parent, other, memory = _parents(islands, place, seeds, able, rng)
        chosen.append(expand(budget, parent, planned[parent.hash], other=other, memory=memory))
        planned[parent.hash] += 1
        islands[place].births += 1
    return chosen


def _is_seed(one: Prospect, found: dict[str, Prospect]) -> bool:
    return not any(parent in found for parent in one.node.candidate.parents)


def _islands(found: dict[str, Prospect], budget: Allowance) -> list[Island]:
    """Return the islands with their members; who founds which follows from the order of proposals alone."""
    islands, home = [Island() for _ in range(ISLANDS)], dict[str, int]()
    founders = 0
    for own, one in found.items():
        if _is_seed(one, found):
            continue
        first = next(parent for parent in one.node.candidate.parents if parent in found)
        if first not in home:
            home[own], founders = founders % ISLANDS, founders + 1
        else:
            home[own] = home[first]
        islands[home[own]].members.append(one)
        islands[home[own]].births += 1
    for expansion in (*budget.pending, *budget.barren):
        first = next(iter(expansion.parents), "")
        if first not in home:
            founders += 1
        islands[home.get(first, (founders - 1) % ISLANDS)].births += 1
    return islands


def _parents(
    islands: list[Island], place: int, seeds: list[Prospect], able: set[str], rng: random.Random
) -> tuple[Prospect, Prospect | None, Memory | None]:
    """Return the parents of an island's next birth, and what their author is to be told."""
    island = islands[place]
    elites = [one for one in ranked(island.elites().values()) if one.hash in able]
    founding = [one for one in seeds if one.hash in able]
    if founding and not island.elites():
        return rng.choice(founding), None, None
    if not elites or island.is_stale:
        return rng.choice(seeds), None, Memory.CLEAN
    neighbour = ranked(islands[place - 1].elites().values())
    if island.births % MIGRATE_EVERY == 0 and neighbour and neighbour[0].hash != elites[0].hash:
        return elites[0], neighbour[0], Memory.BOTH
    first = elites[0] if rng.random() < FAVOUR_BEST else rng.choice(elites)
    rest = [one for one in elites if one.hash != first.hash]
    if rest and rng.random() < CROSSOVER:
        return first, rng.choice(rest), Memory.BOTH
    return first, None, None

"""When to stop: the budget of a run, the rules that end a problem, and when a search turns to bolder means first."""

import math
from typing import NamedTuple

from kernelwright.core.candidate import Origin
from kernelwright.core.exchange import past_limit, totals
from kernelwright.core.problem import Problem
from kernelwright.core.search import nodes_of, speeds
from kernelwright.core.tree import Tree
from kernelwright.engine.run import Run

FINISHING, CONFIRMING = 0.4, 0.25
"""Share of the wall-clock budget that is left for confirming and for the whole model; for confirming alone."""


class Stop(NamedTuple):
    """Why a search stops."""

    rule: str
    """One word."""
    reason: str


def spent_up(run: Run) -> Stop | None:
    """Return which limit of the whole run is reached, if one is."""
    config, tree = run.config, run.tree
    searching = config.budget_s * (1 - (FINISHING if config.model else CONFIRMING))
    if run.spent.seconds >= searching:
        words = f"{run.spent.seconds:.0f} s of {config.budget_s:.0f} s are spent, the rest is for finishing"
        return Stop("budget", words)
    judged = sum(len(node.evaluations) for node in tree.nodes.values())
    if config.max_evaluations is not None and judged >= config.max_evaluations:
        return Stop("evaluations", f"{judged} evaluations were allowed and made")
    device = sum(verdict.seconds for node in tree.nodes.values() for verdict in node.evaluations)
    if config.max_device_s is not None and device >= config.max_device_s:
        return Stop("device", f"{device:.0f} s on the device were allowed and spent")
    if dear := past_limit(totals(tree.exchanges), config.max_cost):
        return Stop("cost", dear)
    if config.target_speedup is not None and (reached := expected_speedup(tree)) >= config.target_speedup:
        words = f"x{reached:.2f} is expected of the whole model, x{config.target_speedup:.2f} was asked for"
        return Stop("target", words)
    return None


def expected_speedup(tree: Tree) -> float:
    """Return what Amdahl's law makes of the gains so far, over the baseline the model was ranked against."""
    saved = 0.0
    for key, problem in tree.problems.items():
        if best := tree.best.get(key):
            measured = speeds(tree, key).certified(best)
            saved += problem.share * (1 - math.exp(-max(0.0, measured or 0.0)))
    return 1 / max(1e-9, 1 - min(saved, 1 - 1e-9))


def worn_out(run: Run, problem: Problem) -> Stop | None:
    """Return which rule ends a problem whatever is tried next, if one does."""
    config, quest = run.config, run.tree.quests[problem.hash]
    reached = floor_share(run.tree, problem)
    if reached is not None and reached >= config.near_floor:
        return Stop("floor", f"{100 * reached:.0f} % of the floor is reached")
    took = run.spent.by_problem.get(problem.hash, 0.0)
    if took >= config.problem_s:
        return Stop("time", f"{took:.0f} s were spent on it")
    if quest.asked >= config.max_expansions:
        return Stop("expansions", f"{quest.asked} expansions were asked for")
    return None


def is_stuck(run: Run, problem: Problem) -> str:
    """Return why nothing more is to be expected of the present means; empty if something is."""
    quest = run.tree.quests[problem.hash]
    if quest.reverts >= run.config.patience:
        return f"{quest.reverts} candidates in a row were not kept"
    if quest.idle >= run.config.patience:
        return f"{quest.idle} expansions in a row brought nothing new"
    return ""


def floor_share(tree: Tree, problem: Problem) -> float | None:
    """Return how near the best is to the floor, by certified times; None where no floor is known."""
    best = tree.best.get(problem.hash)
    node = tree.nodes[problem.hash, best] if best else None
    timing = next((one.timing for one in reversed(node.evaluations) if one.timing), None) if node else None
    if timing is None or any(one.floor_us is None for one in timing.cases):
        return None
    weights = {case.hash: case.weight for case in problem.cases}
    floor = sum(weights[one.case_hash] * (one.floor_us or 0.0) for one in timing.cases)
    return floor / sum(weights[one.case_hash] * one.median_us for one in timing.cases)


def still_to_win(tree: Tree, problem: Problem) -> float:
    """Return the share of the model's time that the problem may still give: what its floor leaves, or all of it."""
    best = tree.best.get(problem.hash)
    if best is None:
        return _ranked(tree, problem)
    now = problem.share * math.exp(-max(0.0, speeds(tree, problem.hash).certified(best) or 0.0))
    reached = floor_share(tree, problem)
    return now * (1 - min(1.0, reached)) if reached is not None else now


def _ranked(tree: Tree, problem: Problem) -> float:
    """Return what the ranking of the model says a problem that is not begun could give; else its whole share."""
    for region in tree.ranked.regions if tree.ranked else ():
        if not region.skipped and region.op == problem.op and math.isclose(region.share, problem.share):
            return 1 - 1 / region.gain
    return problem.share


def tries_of(tree: Tree, problem_hash: str) -> int:
    """Return how many candidates of authors a problem has seen."""
    return sum(node.candidate.origin is Origin.AUTHOR for node in nodes_of(tree, problem_hash))

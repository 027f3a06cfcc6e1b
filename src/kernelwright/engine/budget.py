"""When to stop: the budget of a run, the rules that end a problem, and when a search turns to bolder means first."""

import math
import sys
from typing import NamedTuple

from kernelwright.core.candidate import Origin
from kernelwright.core.exchange import Exchange, past_limit, past_tokens, totals
from kernelwright.core.problem import Problem
from kernelwright.core.search import nodes_of, speeds
from kernelwright.core.tree import Node, Tree
from kernelwright.engine.run import Run

FINISHING, CONFIRMING = 0.4, 0.25
"""Share of the wall-clock budget that is left for confirming and for the whole model; for confirming alone."""
USUAL_STEP = 0.1
"""Share of the budget that a step of a search may take; what the longest took beyond it is left for the next."""
AGAIN = 2
"""How often what judging a baseline and a best took is needed for confirming: torch.compile is judged, the best by the
full profile, and both are compared, once more in fresh processes. Calls of 0.1 s took 240 s after 120 s."""


class Stop(NamedTuple):
    """Why a search stops."""

    rule: str
    """One word."""
    reason: str


def spent_up(run: Run) -> Stop | None:
    """Return which limit of the whole run is reached, if one is."""
    config, tree = run.config, run.tree
    if run.spent.seconds >= config.budget_s - reserved(run):
        words = f"{run.spent.seconds:.0f} s of {config.budget_s:.0f} s are spent, the rest is for finishing"
        return Stop("budget", words)
    if config.max_evaluations is not None and (made := judged(tree)) >= config.max_evaluations:
        return Stop("evaluations", f"{made} evaluations were allowed and made")
    if config.max_device_s is not None and (took := device_s(tree)) >= config.max_device_s:
        return Stop("device", f"{took:.0f} s on the device were allowed and spent")
    llms = totals(tree.exchanges)
    if dear := past_limit(llms, config.max_cost):
        return Stop("cost", dear)
    if long := past_tokens(llms, config.max_tokens):
        return Stop("tokens", long)
    if config.target_speedup is not None and (reached := expected_speedup(tree)) >= config.target_speedup:
        words = f"x{reached:.2f} is expected of the whole model, x{config.target_speedup:.2f} was asked for"
        return Stop("target", words)
    return None


def judged(tree: Tree, problem_hash: str | None = None) -> int:
    """Return how many verdicts were given, on one problem if it is named."""
    return sum(len(node.evaluations) for node in _nodes(tree, problem_hash))


def device_s(tree: Tree, problem_hash: str | None = None) -> float:
    """Return the seconds of judging so far: verdicts, comparisons and looks, on one problem if it is named."""
    took = 0.0
    for node in _nodes(tree, problem_hash):
        took += sum(one.seconds for one in node.evaluations)
        took += sum(one.seconds for one in node.comparisons)
        took += sum(one.seconds for one in node.screenings)
    return took


def exchanges_of(tree: Tree, problem_hash: str) -> list[Exchange]:
    """Return what language models were asked about a problem: before its gains, and since the last one."""
    paid = [one for key, _, past in tree.gains if key == problem_hash for one in past]
    return [*paid, *tree.quests[problem_hash].exchanges]


def _nodes(tree: Tree, problem_hash: str | None) -> list[Node]:
    return [node for (owner, _), node in tree.nodes.items() if problem_hash in (None, owner)]


def verdicts_left(run: Run) -> int:
    """Return how many verdicts may be asked for at once: one is always allowed where one is due."""
    if run.config.max_evaluations is None:
        return sys.maxsize
    return max(1, run.config.max_evaluations - judged(run.tree))


def reserved(run: Run) -> float:
    """Return the seconds that are left for finishing: a share of the budget, or more where judging takes long.

    And for the end of a step that is begun within its time, if one took longer than usual.
    """
    tree, budget_s = run.tree, run.config.budget_s
    share = FINISHING if run.config.model else CONFIRMING
    judging = 0.0
    for key, best in tree.best.items():
        if tree.nodes[key, best].candidate.origin is Origin.AUTHOR:
            pair = (tree.nodes[key, tree.titles[key][0]], tree.nodes[key, best])
            judging += sum(verdict.seconds for node in pair for verdict in node.evaluations[-1:])
    finishing = max(share * budget_s, AGAIN * judging + (share - CONFIRMING) * budget_s)
    return finishing + max(0.0, run.spent.longest - USUAL_STEP * budget_s)


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
    return _had_its_part(run, problem.hash)


def _had_its_part(run: Run, key: str) -> Stop | None:
    """Return which limit of one problem is reached, if one is."""
    config, tree = run.config, run.tree
    if config.problem_evaluations is not None and (made := judged(tree, key)) >= config.problem_evaluations:
        return Stop("problem_evaluations", f"{made} evaluations were made of it")
    if config.problem_device_s is not None and (took := device_s(tree, key)) >= config.problem_device_s:
        return Stop("problem_device_s", f"{took:.0f} s on the device were spent on it")
    llms = totals(exchanges_of(tree, key))
    if dear := past_limit(llms, config.problem_cost, "problem_cost"):
        return Stop("problem_cost", dear)
    if long := past_tokens(llms, config.problem_tokens, "problem_tokens"):
        return Stop("problem_tokens", long)
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

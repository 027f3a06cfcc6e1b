"""Plateaus: what a search that is stuck turns to before its problem is given up.

1. Bolder proposals: authors are told, and those without a key take two steps at once; the memory that led here is left
   out.
2. Another strategy.
3. Another language: the one of the best kernel is left alone, and the strategy sees the kernels in all others. An
   author who can begin with nothing is asked first for kernels in a language that has none.

Everything is read off the tree, so a resumed run does the same.
"""

from dataclasses import replace

from kernelwright.core.candidate import Origin
from kernelwright.core.events import Body, ProblemEnded, SearchEscalated
from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.problem import Problem
from kernelwright.core.search import Certainty, nodes_of, prospects, ranked
from kernelwright.core.tree import Tree
from kernelwright.engine.crew import can_draft
from kernelwright.engine.run import Run
from kernelwright.engine.scheduler import STUCK

LEVELS = ("bolder proposals, without the memory that led here", "another strategy", "another language")
"""What an escalated search turns to, level by level."""
STRATEGY, LANGUAGE = 2, 3
BOLDER = "nothing was kept for a while: try something of another kind"


def next_means(run: Run, problem: Problem, words: str) -> Body:
    """Return the turn to the next means; when none is left, the end of the problem."""
    level = run.tree.quests[problem.hash].level + 1
    if level <= min(run.config.escalations, len(LEVELS)):
        left = _language(run, problem) if level == LANGUAGE else ""
        lack = _lack(run, problem, left) if left else ""
        if not lack:
            reason = f"{words}; next: {LEVELS[level - 1]}{f' than {left}' if left else ''}"
            return SearchEscalated(problem_hash=problem.hash, level=level, reason=reason, left=left)
        words = f"{words}; no other language was tried: {lack}"
    return ProblemEnded(problem_hash=problem.hash, rule=STUCK, reason=words)


def strategy_of(run: Run, problem: Problem) -> str:
    """Return the strategy in charge: the one asked for, another one once the search is escalated twice."""
    if run.tree.quests[problem.hash].level < STRATEGY:
        return run.config.strategy
    return "evolve" if run.config.strategy != "evolve" else "mcts"


def bolder(run: Run, expansion: Expansion) -> Expansion:
    """Return the expansion as an escalated search words it: without the memory that led here."""
    level = run.tree.quests[expansion.problem_hash].level
    if level == 0 or level >= LANGUAGE:  # little was tried in another language yet
        return expansion
    return expansion.model_copy(update={"hint": BOLDER, "memory": Memory.SIBLINGS, "bold": run.config.bold})


def seen(run: Run, problem: Problem) -> Tree:
    """Return the tree as a strategy sees it: without the kernels in a language that was left alone."""
    left = run.tree.quests[problem.hash].left
    if not left:
        return run.tree
    nodes = {
        key: node
        for key, node in run.tree.nodes.items()
        if key[0] != problem.hash or node.candidate.backend != left
    }
    return replace(run.tree, nodes=nodes)


def drafts(run: Run, problem: Problem) -> list[Expansion]:
    """Return drafts in a language without an accepted kernel, asked for once, where somebody can write them."""
    quest = run.tree.quests[problem.hash]
    if not quest.left or not can_draft(run.members):
        return []
    made = [node.expansion for node in nodes_of(run.tree, problem.hash) if node.expansion]
    asked = {one.backend for one in (*quest.pending, *quest.barren, *made)}
    has_one = _accepted_in(run, problem)
    for name in run.seeds.backends:
        if name not in (quest.left, *asked, *has_one):
            return [
                Expansion(
                    problem_hash=problem.hash,
                    memory=Memory.CLEAN,
                    diagnosis=place,
                    hint=f"write it afresh, in {name}",
                    backend=name,
                )
                for place in range(run.config.drafts)
            ]
    return []


def _language(run: Run, problem: Problem) -> str:
    """Return the language of the title holder; of the best kernel while a baseline holds the title."""
    holder = run.tree.nodes[problem.hash, run.tree.best[problem.hash]].candidate
    if holder.origin is not Origin.BASELINE:
        return holder.backend
    found = prospects(run.tree, Allowance(problem_hash=problem.hash, expansions=1)).values()
    return next((one.node.candidate.backend for one in ranked(found)), run.seeds.backends[0])


def _lack(run: Run, problem: Problem, left: str) -> str:
    """Return why there is no other language to turn to; empty if there is one."""
    others = [name for name in run.seeds.backends if name != left]
    if not others:
        return f"{left} is the only one of this run"
    if can_draft(run.members) or _accepted_in(run, problem) & {*others}:
        return ""
    return f"there is no accepted kernel in {', '.join(others)}, and nobody who begins with nothing"


def _accepted_in(run: Run, problem: Problem) -> set[str]:
    """Return the languages that have an accepted kernel."""
    found = prospects(run.tree, Allowance(problem_hash=problem.hash, expansions=1)).values()
    return {one.node.candidate.backend for one in found if one.certainty is Certainty.CERTIFIED}

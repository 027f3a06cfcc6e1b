"""Which problem next: the end-to-end time still to win, times how the search of it has gone lately."""

from kernelwright.core.candidate import Origin
from kernelwright.core.lesson import Teaching
from kernelwright.core.search import nodes_of
from kernelwright.core.tree import Tree
from kernelwright.engine.budget import still_to_win, tries_of

STUCK = "stuck"
"""The rule that ends a problem of which nothing more is expected."""
NEWS = 2.0
"""How much more a problem counts when another one of the same op and language has learnt something since."""


def next_problem(tree: Tree) -> str | None:
    """Return the problem whose turn it is; None if the search of all of them has ended.

    One that was given up is taken up again when another one of the same op and language has learnt something since.
    """
    open_ones = [
        key
        for key, quest in tree.quests.items()
        if quest.ended is None or (quest.ended.rule == STUCK and has_news(tree, key))
    ]
    # What was begun is finished first: an expansion, a candidate.
    for key in open_ones:
        undecided = any(node.decision is None for node in nodes_of(tree, key))
        if tree.quests[key].pending or undecided:
            return key
    # A winner of a similar problem is the cheapest gain there is: every problem has its own before any is searched.
    for key in open_ones:
        if any(
            one.problem_hash == key and (key, one.candidate.hash) not in tree.nodes
            for one in tree.given.starts
        ):
            return key
    # Ties go to the earlier rank: max takes the first. One that is not begun promises what the ranking says.
    return max(open_ones, key=lambda key: promise(tree, key), default=None)


def promise(tree: Tree, key: str) -> float:
    """Return what one more turn of a problem promises."""
    problem, quest = tree.problems[key], tree.quests[key]
    progress = 1 / (1 + quest.reverts + quest.idle)
    news = NEWS if has_news(tree, key) else 1.0
    return still_to_win(tree, problem) * progress * news / (1 + 0.05 * tries_of(tree, key))


def has_news(tree: Tree, key: str) -> bool:
    """Tell whether another problem of the op has learnt something in a language of this one since its last turn."""
    own = {found.hash for node in nodes_of(tree, key) for found in node.comparisons}
    kernels = [one.candidate for one in nodes_of(tree, key) if one.candidate.origin is Origin.AUTHOR]
    languages = {one.backend for one in kernels}
    return any(
        lesson.op == tree.problems[key].op
        and (not languages or lesson.backend in languages)
        and lesson.teaching is Teaching.GAIN
        and not own.intersection(lesson.evaluations)
        for lesson in tree.lessons[tree.quests[key].heard :]
    )

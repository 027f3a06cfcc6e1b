"""What the searches share: how an expansion of a node is worded, and how a tree without any kernel begins."""

from collections import Counter
from collections.abc import Sequence

from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.search import Certainty, Prospect, failure_of

MEND = "mend it: the judge says {}"
IMPROVE = "make it faster"
COMBINE = "combine what is good in both"
AFRESH = "write it afresh, in another way"
IN_VAIN = 3
"""Answers without a new kernel after which a node is left alone: its authors have nothing more to say about it."""


def expand(
    budget: Allowance,
    parent: Prospect,
    offset: int = 0,
    *,
    other: Prospect | None = None,
    memory: Memory | None = None,
) -> Expansion:
    """Return the next expansion of a node: a diagnosis nobody has worked on, `offset` further than the last one."""
    hint = IMPROVE if other is None else COMBINE
    if parent.certainty is Certainty.FAILED and (status := failure_of(parent.node)):
        hint = MEND.format(status.value)
    if memory is None:
        memory = Memory.BOTH if parent.tries + offset else Memory.INHERIT
    return Expansion(
        problem_hash=budget.problem_hash,
        parents=(parent.hash,) if other is None else (parent.hash, other.hash),
        memory=memory,
        diagnosis=parent.tries + offset,
        hint=AFRESH if memory is Memory.CLEAN else hint,
    )


def fertile(found: Sequence[Prospect], budget: Allowance) -> list[Prospect]:
    """Return the nodes about which authors may have something to say; all of them if there is no such node."""
    vain = Counter(parent for one in budget.barren for parent in one.parents[:1])
    return [one for one in found if vain[one.hash] < IN_VAIN] or list(found)


def first_drafts(budget: Allowance, found: dict[str, Prospect]) -> list[Expansion]:
    """Return drafts from nothing if no kernel exists and none is under way."""
    if found or budget.pending:
        return []
    return [
        Expansion(problem_hash=budget.problem_hash, memory=Memory.CLEAN, diagnosis=place, hint=AFRESH)
        for place in range(len(budget.barren), len(budget.barren) + budget.expansions)
    ]

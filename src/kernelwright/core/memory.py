"""The shared memory of a crew: what its authors concluded, ranked for one expansion and told once.

It is a fold of the tree. Every entry names its author, the attempt, what that was made from and how it ended, failures
too. Which entries an author hears of is a matter of the memory mode: its line, its siblings, or everything.
"""

import math
from collections.abc import Iterable
from typing import Literal

from kernelwright.core.brief import Memo
from kernelwright.core.difference import change_of
from kernelwright.core.expansion import Expansion, Memory
from kernelwright.core.lesson import normal_claim
from kernelwright.core.recall import line_of
from kernelwright.core.search import speeds
from kernelwright.core.tree import Node, Tree

Relation = Literal["ancestor", "sibling", "elsewhere", "kin"]
MOST_MEMOS = 10
HEARD: dict[Memory, tuple[Relation, ...]] = {
    Memory.CLEAN: (),
    Memory.INHERIT: ("ancestor",),
    Memory.SIBLINGS: ("sibling",),
    Memory.BOTH: ("ancestor", "sibling", "elsewhere", "kin"),
}
NEARNESS: dict[Relation, float] = {"sibling": 3.0, "ancestor": 2.5, "elsewhere": 1.5, "kin": 0.5}
SAME_BOTTLENECK = 1.2
"""A conclusion about the same wait elsewhere comes before one about another wait nearby in the tree."""
UNTHOUGHT = -1.0
"""What an entry without a reflection counts less."""


def conclusions(tree: Tree, expansion: Expansion, bottleneck: str = "") -> tuple[Memo, ...]:
    """Return what an author is told of the crew's conclusions, the most relevant first, nothing twice."""
    found = [
        (_relevance(node, relation, bottleneck), node, relation)
        for node in tree.nodes.values()
        if node.remark is not None and (relation := _relation(tree, node, expansion))
    ]
    found.sort(key=lambda one: (-one[0], -one[1].seq))
    return _distinct(_memo(tree, node, relation) for _, node, relation in found)


def _relation(tree: Tree, node: Node, expansion: Expansion) -> Relation | None:
    """Return how a node stands to an expansion, if its memory mode has it told."""
    own = node.candidate
    if node.problem_hash != expansion.problem_hash:
        same_op = own.op == tree.problems[expansion.problem_hash].op
        relation: Relation | None = "kin" if same_op else None
    elif own.hash in _line(tree, expansion):
        relation = "ancestor"
    elif set(own.parents) & set(expansion.parents):
        relation = "sibling"
    else:
        relation = "elsewhere"
    return relation if relation in HEARD[expansion.memory] else None


def _line(tree: Tree, expansion: Expansion) -> set[str]:
    first = next(iter(expansion.parents), "")
    return {node.candidate.hash for node in line_of(tree, expansion.problem_hash, first)}


def _relevance(node: Node, relation: Relation, bottleneck: str) -> float:
    assert node.remark is not None
    found = NEARNESS[relation]
    found += SAME_BOTTLENECK if bottleneck and node.remark.bottleneck == bottleneck else 0.0
    return found + (UNTHOUGHT if node.remark.reflection is None else 0.0)


def _memo(tree: Tree, node: Node, relation: Relation) -> Memo:
    remark, candidate = node.remark, node.candidate
    assert remark is not None
    thought = remark.reflection
    above = tree.nodes.get((node.problem_hash, remark.parent_hash))
    speed = speeds(tree, node.problem_hash).certified(candidate.hash)
    is_told = relation in ("ancestor", "sibling")  # its change is told with the attempt
    return Memo(
        candidate_hash=candidate.hash,
        number=node.seq,
        parent_hash=remark.parent_hash,
        agent=remark.agent,
        relation=relation,
        outcome=remark.outcome,
        status=remark.status,
        speed=None if speed is None else math.exp(speed),
        why=thought.why if thought else node.decision.reason if node.decision else "",
        avoid=thought.avoid if thought else (),
        try_next=thought.try_next if thought else (),
        change=change_of(above.candidate, candidate) if above and not is_told else "",
    )


def _distinct(memos: Iterable[Memo]) -> tuple[Memo, ...]:
    """Return the first memos; a point that was made before is left out, and so is a memo that says nothing new."""
    said: set[str] = set()
    told: list[Memo] = []
    for memo in memos:
        avoid, try_next = _fresh(memo.avoid, said), _fresh(memo.try_next, said)
        is_new = normal_claim(memo.why) not in said
        said.add(normal_claim(memo.why))
        if not (avoid or try_next or is_new):
            continue
        told.append(memo.model_copy(update={"avoid": avoid, "try_next": try_next}))
        if len(told) == MOST_MEMOS:
            break
    return tuple(told)


def _fresh(points: Iterable[str], said: set[str]) -> tuple[str, ...]:
    """Return the points nobody made before, and remember them."""
    found = []
    for point in points:
        if (words := normal_claim(point)) not in said:
            said.add(words)
            found.append(point)
    return tuple(found)

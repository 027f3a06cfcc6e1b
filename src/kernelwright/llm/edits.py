"""Edits of a file as search and replace blocks, applied strictly: each must be found exactly once."""

from collections.abc import Sequence
from itertools import pairwise

from pydantic import Field

from kernelwright.core.frozen import Frozen
from kernelwright.llm.conversation import BadReply

SHOWN = 60


class Edit(Frozen):
    """One place to change."""

    search: str = Field(min_length=1)
    """Text of the file, exact to the space, long enough to occur once."""
    replace: str
    """What stands there afterwards."""


def apply_edits(source: str, edits: Sequence[Edit]) -> str:
    """Return the file after all edits; each is looked for in the file as it was, and none may overlap."""
    places: list[tuple[int, int, str]] = []
    for number, edit in enumerate(edits, 1):
        count = _count(source, edit.search)
        if count != 1:
            raise BadReply(
                f"edit {number} must match exactly once but matches {count} times: {edit.search[:SHOWN]!r}"
            )
        start = source.index(edit.search)
        places.append((start, start + len(edit.search), edit.replace))
    places.sort()
    for (_, end, _), (start, _, _) in pairwise(places):
        if start < end:
            raise BadReply("two edits overlap; make one of them")
    parts, at = [], 0
    for start, end, replacement in places:
        parts += [source[at:start], replacement]
        at = end
    return "".join([*parts, source[at:]])


def _count(text: str, wanted: str) -> int:
    """Return how often a text occurs, overlapping occurrences included."""
    count, at = 0, text.find(wanted)
    while at >= 0:
        count, at = count + 1, text.find(wanted, at + 1)
    return count

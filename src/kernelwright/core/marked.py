"""Source in which only marked regions may change: between two comments, everything outside stays as it is.

    // kernelwright: begin inner_loop
    ...
    // kernelwright: end inner_loop

A mark is a line of its own. A file may have several regions; they have names and do not overlap. Text is compared as it
stands, line ends included: whoever reads a file for this must not let Python translate them.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches

from kernelwright.core.errors import BadInput

MARK = re.compile(
    r"^[ \t]*//[ \t]*kernelwright:[ \t]*(?P<kind>\w+)[ \t]*(?P<name>[^\r\n]*?)[ \t]*(?:\r?\n|\Z)", re.M
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HELP = "Write `// kernelwright: begin NAME` and `// kernelwright: end NAME` on lines of their own."
SHOWN = 60
"""Characters of a changed line that a refusal repeats."""


@dataclass(frozen=True)
class Marked:
    """One region: its name, and where its text begins and ends."""

    name: str
    start: int
    """Behind the line of the first mark."""
    end: int
    """At the beginning of the line of the second one."""


def regions(text: str, where: str) -> tuple[Marked, ...]:
    """Return the marked regions of a text in order, none if it has no marks; marks that do not pair are refused."""
    found: list[Marked] = []
    opened: re.Match[str] | None = None
    for mark in MARK.finditer(text):
        line = f"line {text.count(chr(10), 0, mark.start()) + 1}"
        if problem := _problem(mark, opened, {one.name for one in found}):
            raise BadInput(where, f"{line}: {problem}", HELP)
        if mark["kind"] == "begin":
            opened = mark
        else:
            assert opened is not None, "an end without a begin is refused"
            found.append(Marked(mark["name"], opened.end(), mark.start()))
            opened = None
    if opened is not None:
        raise BadInput(where, f"the region {opened['name']!r} has no end", HELP)
    return tuple(found)


def _problem(mark: re.Match[str], opened: re.Match[str] | None, known: set[str]) -> str:
    kind, name = mark["kind"], mark["name"]
    if kind not in ("begin", "end"):
        return f"{kind!r} is no mark"
    if not NAME.fullmatch(name):
        return f"{name!r} is no name of a region"
    if kind == "end":
        if opened is None:
            return f"the region {name!r} ends without a beginning"
        return "" if opened["name"] == name else f"{name!r} ends inside {opened['name']!r}"
    if opened is not None:
        return f"{name!r} begins inside {opened['name']!r}"
    return f"there are two regions named {name!r}" if name in known else ""


def outside(text: str, where: str) -> tuple[str, ...]:
    """Return the pieces of a text that may not change, in order: the lines of the marks belong to them."""
    pieces, last = [], 0
    for one in regions(text, where):
        pieces.append(text[last : one.start])
        last = one.end
    return (*pieces, text[last:])


def replaced(text: str, name: str, inside: str, where: str) -> str:
    """Return a text with the content of one region exchanged; the new content must not hold marks itself."""
    found = {one.name: one for one in regions(text, where)}
    if name not in found:
        near = get_close_matches(name, found, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise BadInput(where, f"it has no region {name!r}", f"{hint}Known: {', '.join(found) or 'none'}.")
    if MARK.search(inside):
        raise BadInput(where, f"the new content of {name!r} holds a mark of its own", "Leave the marks out.")
    if inside and not inside.endswith("\n"):
        inside += "\n"
    made = text[: found[name].start] + inside + text[found[name].end :]
    assert outside(made, where) == outside(text, where), "only the region was exchanged"
    return made


def outside_unchanged(before: str, after: str) -> str | None:
    """Return what a proposal changed outside the marked regions of the text it was made from, or None.

    A text without marks may be changed anywhere; so may one whose marks do not pair, which no file of a user's has.
    Never raises: both texts may be a candidate's.
    """
    try:
        first = regions(before, "the source")
    except BadInput:
        return None
    if not first:
        return None
    try:
        second = regions(after, "the proposal")
    except BadInput as error:
        return f"its marks are damaged: {error}"
    names, others = [one.name for one in first], [one.name for one in second]
    if names != others:
        return f"its regions are {', '.join(others) or 'none'}, not {', '.join(names)}"
    pairs = zip(outside(before, "the source"), outside(after, "the proposal"), strict=True)
    for place, (ours, theirs) in enumerate(pairs):
        if ours != theirs:
            edge = f"before region {names[place]!r}" if place < len(names) else f"behind region {names[-1]!r}"
            return f"it changes what lies {edge}: {_first_change(ours, theirs)}"
    return None


def _first_change(ours: str, theirs: str) -> str:
    """Return the first line in which two texts differ, in words."""
    mine, other = ours.splitlines(keepends=True), theirs.splitlines(keepends=True)
    for old, new in zip(mine, other, strict=False):
        if old != new:
            return f"{old[:SHOWN]!r} became {new[:SHOWN]!r}"
    more = len(other) - len(mine)
    return f"{more} lines were added" if more > 0 else f"{-more} lines are missing"


def plain(text: str) -> str:
    """Return a text with the line ends that authors write."""
    return text.replace("\r\n", "\n")


def put_back(original: str, proposal: str, where: str) -> str:
    """Return the original file with the regions of a proposal in it; every character outside is the original's.

    A proposal that was changed elsewhere is refused by name. Line ends of the regions become those of the original.
    """
    ends, given = "\r\n" if "\r\n" in original else "\n", plain(proposal)
    if not regions(original, where):
        raise BadInput(where, "it has no marked region", HELP)
    if problem := outside_unchanged(plain(original), given):
        raise BadInput(where, problem, "Change only what lies between the marks.")
    made = original
    for one in regions(given, "the proposal"):
        made = replaced(made, one.name, given[one.start : one.end].replace("\n", ends), where)
    assert outside(made, where) == outside(original, where), "only regions were exchanged"
    return made

"""What was changed from one candidate to another: chosen values, literals in the text, and the text itself."""

import re
from collections import defaultdict
from difflib import unified_diff

from kernelwright.core.candidate import Candidate, ParamValue

MAX_CHANGE = 4000
"""Characters of a diff an author is told."""
MOST_LITERALS = 12
LITERAL = re.compile(r"\b([A-Za-z_]\w*)\s*=\s*(-?\d+(?:\.\d+)?|True|False)(?![\w.])")


def change_of(before: Candidate, after: Candidate) -> str:
    """Return the whole change in words: values first, then literals, then a bounded unified diff; empty if none."""
    lines = [*value_changes(before, after), *literal_changes(before.source, after.source)]
    return "\n".join(filter(None, (*lines, text_change(before.source, after.source))))


def value_changes(before: Candidate, after: Candidate) -> list[str]:
    """Return the chosen parameters that differ, such as `num_warps: 4 -> 8`; cases are counted where it is not all."""
    rows: dict[str, list[str]] = defaultdict(list)
    for choice in after.choices:
        first = next(iter(choice.case_hashes), "")
        old = before.values_for(first)
        where = f"{len(choice.case_hashes)} cases" if choice.case_hashes else "unseen shapes"
        for name in {**old, **choice.values}:
            was, now = _shown(old, name), _shown(choice.values, name)
            if was != now:
                rows[f"{name}: {was} -> {now}"].append(where)
    is_everywhere = len(after.choices)
    return [
        line if len(places) == is_everywhere else f"{line} ({', '.join(places)})"
        for line, places in rows.items()
    ]


def _shown(values: dict[str, ParamValue], name: str) -> str:
    return str(values[name]) if name in values else "none"


def literal_changes(before: str, after: str) -> list[str]:
    """Return the named literals of the text that differ: they must not be lost where a long diff is cut."""
    if before == after:
        return []
    old, new = _literals(before), _literals(after)
    found = [
        f"{name} = {', '.join(old[name])} -> {', '.join(new[name])}"
        for name in old
        if name in new and old[name] != new[name]
    ]
    return found[:MOST_LITERALS]


def _literals(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in LITERAL.findall(source):
        found.setdefault(name, []).append(value)
    return found


def text_change(before: str, after: str) -> str:
    """Return the bounded unified diff of two texts; empty if they are equal."""
    if before == after:
        return ""
    lines = unified_diff(before.splitlines(), after.splitlines(), "parent", "attempt", lineterm="", n=1)
    text = "\n".join(lines)
    return text if len(text) <= MAX_CHANGE else text[:MAX_CHANGE] + "\n[cut]"

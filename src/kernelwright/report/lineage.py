"""The search of a problem as a tree: one row per candidate, children below and to the right of what they came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelwright.report.axes import factor, micros
from kernelwright.report.canvas import canvas, mark
from kernelwright.report.markup import Element, add, tag
from kernelwright.report.model import Experiment, Fate, ProblemFact

ROW, STEP, LEFT = 22.0, 20.0, 16.0
WIDE = 1000.0
WORDS = 132
"""Characters of a row's text, with the deepest indentation."""
MOST_ROWS = 400
"""Rows that are drawn; of a larger search the oldest that led nowhere are left out, and that is said."""


@dataclass(frozen=True)
class Row:
    """One candidate in its place."""

    experiment: Experiment
    depth: int
    above: int | None
    """Row of the parent."""


def rows(experiments: Sequence[Experiment]) -> list[Row]:
    """Return candidates in the order of a walk through the tree, parents before their children."""
    known = {one.hash for one in experiments}
    children: dict[str | None, list[Experiment]] = {}
    for one in experiments:
        parent = next((above for above in one.parents if above in known and above != one.hash), None)
        children.setdefault(parent, []).append(one)
    found: list[Row] = []
    waiting: list[tuple[Experiment, int, int | None]] = [
        (one, 0, None) for one in reversed(children.get(None, []))
    ]
    while waiting:
        one, depth, above = waiting.pop()
        found.append(Row(one, depth, above))
        below = len(found) - 1
        waiting += [(child, depth + 1, below) for child in reversed(children.get(one.hash, []))]
    return found


def drawn(experiments: Sequence[Experiment], most: int = MOST_ROWS) -> tuple[list[Experiment], int]:
    """Return the candidates that are shown, and how many are not: those that led nowhere go first, oldest first."""
    if len(experiments) <= most:
        return list(experiments), 0
    by_hash = {one.hash: one for one in experiments}
    needed: set[str] = set()
    for one in experiments:
        if one.fate is Fate.KEPT or one.is_baseline:
            needed |= _ancestors(one, by_hash)
    spare = [one.hash for one in experiments if one.hash not in needed]
    room = max(0, most - len(needed))
    stay = needed | set(spare[len(spare) - room :])
    return [one for one in experiments if one.hash in stay], len(experiments) - len(stay)


def _ancestors(one: Experiment, by_hash: Mapping[str, Experiment]) -> set[str]:
    found: set[str] = set()
    waiting = [one.hash]
    while waiting:
        name = waiting.pop()
        if name in by_hash and name not in found:
            found.add(name)
            waiting += by_hash[name].parents
    return found


def lineage(problem: ProblemFact) -> Element:
    """Return the tree of a problem's candidates; the way to the winner is drawn thick."""
    experiments, missing = drawn(problem.experiments)
    placed = rows(experiments)
    step = min(STEP, 320 / max([1, *(row.depth for row in placed)]))
    height = ROW * (len(placed) + (1 if missing else 0)) + 12
    picture = canvas(WIDE, height, f"Search tree of {problem.name}")
    picture.set("class", "chart tree")
    way = _way(problem, {one.hash: one for one in experiments})

    def spot(row: int) -> tuple[float, float]:
        return LEFT + step * placed[row].depth, ROW * row + ROW / 2 + 4

    # The way last: it lies over the others.
    for number, row in sorted(enumerate(placed), key=lambda pair: pair[1].experiment.hash in way):
        if row.above is not None:
            (x, y), (left, top) = spot(number), spot(row.above)
            name = "edge way" if row.experiment.hash in way else "edge"
            add(picture, tag("path", d=f"M{left:.1f} {top + 6:.1f}V{y:.1f}H{x - 6:.1f}", class_=name))
    for number, row in enumerate(placed):
        one, (x, y) = row.experiment, spot(number)
        add(picture, mark(x, y, one.fate, one.is_baseline, _told(one), 5.5))
        add(picture, _words(one, x + 14, y + 4, problem.baseline, one.hash in way))
    if missing:
        words = f"and {missing} more that led nowhere; results.tsv lists them"
        add(picture, tag("text", words, x=LEFT, y=height - 10, class_="tick"))
    return picture


def _way(problem: ProblemFact, by_hash: Mapping[str, Experiment]) -> set[str]:
    kept = [one for one in by_hash.values() if one.fate is Fate.KEPT and not one.is_baseline]
    return _ancestors(kept[-1], by_hash) if kept and problem.is_won else set()


def _told(one: Experiment) -> str:
    looks = f"\n{one.screenings} screenings" if one.screenings else ""
    return f"{one.number}. {one.backend} by {one.author}: {one.fate.value}\n{one.note}\n{one.reason}{looks}"


def _words(one: Experiment, x: float, y: float, baseline: str, is_way: bool) -> Element:
    speed = f"{factor(one.speed)} over {baseline}, {micros(one.certified_us)}" if one.speed else ""
    text = tag("text", tag("tspan", f"{one.number} ", class_="number"), x=x, y=y, class_="key")
    name = "baseline" if one.is_baseline else f"by {one.author}"
    add(text, tag("tspan", f"{one.backend} {name}", class_="strong" if is_way else None))
    rest = " · ".join(part for part in (speed, _first(one)) if part)
    room = max(20, WORDS - len(one.backend) - len(name) - round(x / 7))
    add(text, tag("tspan", f"  {rest[:room]}{'…' if len(rest) > room else ''}", class_="soft"))
    return text


def _first(one: Experiment) -> str:
    """Return the first sentence on a candidate: why it failed, else what was tried."""
    words = one.reason if one.fate is Fate.FAILED else one.note
    return " ".join(words.split())

"""`report.html`: the whole run on one page that needs no network, no script and no second file."""

from collections.abc import Iterable, Sequence
from importlib import resources

from kernelwright.core.ledger import HEAD
from kernelwright.report import wording
from kernelwright.report.amdahl import amdahl
from kernelwright.report.axes import percent
from kernelwright.report.canvas import canvas, mark
from kernelwright.report.lineage import lineage
from kernelwright.report.markup import Child, Element, add, rendered, tag
from kernelwright.report.model import CertificateFact, Change, Fate, ProblemFact, Report
from kernelwright.report.progress import progress
from kernelwright.report.roofline import roofline

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""Even what slipped through the escaping could run nothing and fetch nothing."""
TIMED = (wording.PROBLEM_HEAD.index("baseline"), wording.PROBLEM_HEAD.index("winner"))
NUMERIC = frozenset(
    (
        *("share", "places", "gain", "of the floor", "search", "pays after", "gain at its floor", "effect"),
        *("ratio", "pairs", "starts", "evidence", "checked", "seconds", "count", "time before it"),
        *("cold", "warm", "floor", "SOL score"),
    )
)
"""Columns of numbers, which stand at the right."""


def page(report: Report) -> str:
    """Return the page."""
    style = resources.files("kernelwright.report").joinpath("page.css").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"Kernelwright {report.run_id}"),
        tag("style", style),
    )
    main = tag("main", *_top(report), *_problems(report), *_pictures(report))
    for problem in report.problems:
        add(main, *_one(problem))
    add(main, *_endnotes(report))
    return f"<!doctype html>\n{rendered(tag('html', head, tag('body', main), lang='en'))}\n"


def table(head: Sequence[str], rows: Iterable[Sequence[Child]]) -> Element:
    """Return a table in a box of its own that scrolls; columns of numbers stand at the right."""
    is_list = len(head) == 2
    sides = ["n" if name in NUMERIC else None for name in head]
    top = tag("tr", *(tag("th", name, class_=side) for name, side in zip(head, sides, strict=True)))
    lines = [
        tag("tr", *(tag("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)))
        for row in rows
    ]
    whole = tag("table", tag("thead", top), tag("tbody", *lines), class_="list" if is_list else None)
    return tag("div", whole, class_="scroll")


def _top(report: Report) -> list[Child]:
    tiles = [
        tag("div", tag("b", number), tag("span", what), tag("span", more), class_="tile")
        for number, what, more in wording.tiles(report)
    ]
    found: list[Child] = [
        tag("h1", f"Kernelwright · {report.run_id}"),
        tag("p", report.headline, class_="headline"),
        tag("div", *tiles, class_="tiles"),
        tag("p", wording.about(report), class_="soft"),
    ]
    if report.use:
        found += [tag("p", "Use the result:"), tag("pre", report.use)]
    return found


def _problems(report: Report) -> list[Child]:
    if not report.problems:
        return [tag("h2", "Problems"), tag("p", "The run has none.")]
    rows = [
        [_two_lines(cell) if place in TIMED else cell for place, cell in enumerate(row)]
        for row in wording.problem_rows(report)
    ]
    return [
        tag("h2", "Problems"),
        table(wording.PROBLEM_HEAD, rows),
        tag("p", wording.payback(report), class_="caption"),
    ]


def _two_lines(cell: str) -> Child:
    """Return a name with its time below it."""
    name, _, time = cell.rpartition(", ")
    return tag("span", name, tag("span", time, class_="under"), class_="who") if name else cell


def _legend(has_floor: bool) -> Element:
    entries = [
        ("baseline", Fate.KEPT, True),
        ("kept", Fate.KEPT, False),
        ("reverted", Fate.REVERTED, False),
        ("failed", Fate.FAILED, False),
        ("not decided", Fate.OPEN, False),
    ]
    found = []
    for name, fate, is_baseline in entries:
        picture = add(canvas(22, 14, name), mark(11, 7, fate, is_baseline, name, 5))
        found.append(tag("span", picture, name))
    line = add(canvas(22, 14, "best"), tag("path", d="M1 10H11V4H21", class_="best"))
    found.append(tag("span", line, "best so far"))
    if has_floor:
        floor = add(canvas(22, 14, "floor"), tag("line", x1=1, x2=21, y1=7, y2=7, class_="floor"))
        found.append(tag("span", floor, "floor"))
    return tag("div", *found, class_="legend")


def _pictures(report: Report) -> list[Child]:
    found: list[Child] = []
    shown = [one for one in report.problems if one.steps]
    if shown:
        figures = [
            tag("figure", tag("figcaption", f"{one.name} ", tag("span", wording.result(one))), progress(one))
            for one in shown
        ]
        found += [
            tag("h2", "Progress"),
            _legend(any(one.floor_us for one in shown)),
            tag("div", *figures, class_="grid"),
        ]
        if words := wording.floors(report):
            found.append(tag("p", words, class_="caption"))
    if report.slices:
        found += [tag("h2", "The model's time, before and after"), amdahl(report)]
        found.append(tag("p", wording.amdahl_caption(report), class_="caption"))
    if any(one.points for one in report.problems):
        found += [tag("h2", "Roofline"), roofline(report)]
        found.append(tag("p", wording.roof_caption(report), class_="caption"))
    return found


def _one(problem: ProblemFact) -> list[Child]:
    said = [part for name, words in wording.outcome(problem) for part in (tag("dt", name), tag("dd", words))]
    found: list[Child] = [tag("h2", problem.name), tag("dl", *said)]
    if problem.experiments:
        found += [tag("h3", "Search tree"), tag("div", lineage(problem), class_="treebox")]
    found += _changed(problem.change)
    if problem.certificate:
        found += _certificate(problem.certificate)
    return found


def _changed(change: Change) -> list[Child]:
    found: list[Child] = [tag("h3", "Winner against seed"), tag("p", change.words)]
    if change.parameters:
        rows = [[one.name, one.before, one.after, one.cases] for one in change.parameters]
        found.append(table(["parameter", "seed", "winner", "cases"], rows))
    if change.diff:
        lines = [tag("span", f"{line}\n", class_=_side(line)) for line in change.diff.split("\n")]
        found.append(tag("details", tag("summary", "Diff"), tag("pre", *lines)))
    return found


def _side(line: str) -> str:
    if line.startswith(("+++", "---", "@@")):
        return "at"
    return {"+": "add", "-": "del"}.get(line[:1], "same")


def _certificate(found: CertificateFact) -> list[Child]:
    environment = [[name, value] for name, value in found.environment.items()]
    return [
        tag("h3", "Certificate"),
        tag("p", wording.certificate(found)),
        table(wording.COMPARISON_HEAD, wording.comparison_rows(found)),
        table(wording.TIME_HEAD, wording.time_rows(found)),
        tag(
            "details",
            tag("summary", "Stages and environment"),
            table(wording.STAGE_HEAD, wording.stage_rows(found)),
            table(["environment", "value"], environment),
        ),
    ]


def _endnotes(report: Report) -> list[Child]:
    found: list[Child] = []
    if report.lessons:
        rows = [
            [one.claim, one.where, f"×{one.ratio:.3f}" if one.ratio else "–", str(one.evidence)]
            for one in report.lessons
        ]
        found += [tag("h2", "Lessons"), table(["lesson", "holds for", "effect", "evidence"], rows)]
    if report.ledger:
        found += [tag("h2", "What language models cost"), table(HEAD, wording.ledger_rows(report.ledger))]
        found.append(tag("p", report.ledger.per_gain))
    if report.left_out:
        rows = [
            [one.name, str(one.count), percent(one.share), f"×{one.gain:.3f}", one.why]
            for one in report.left_out
        ]
        found += [
            tag("h2", "Left out"),
            table(["region", "places", "share", "gain at its floor", "why"], rows),
        ]
    if report.notes:
        found += [tag("h2", "Notes"), tag("ul", *(tag("li", note) for note in report.notes))]
    settings = [[name, value] for name, value in report.settings.items()]
    versions = [[name, value] for name, value in report.versions.items()]
    found += [
        tag("h2", "Settings and versions"),
        tag(
            "p",
            f"Ended: {wording.sentence(report.ended)}",
        ),
        tag(
            "details",
            tag("summary", "All of them"),
            table(["setting", "value"], settings),
            table(["package", "version"], versions),
            table(wording.EVENT_HEAD, wording.event_rows(report)),
        ),
    ]
    return found

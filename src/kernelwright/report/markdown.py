"""`report.md`: the run in words and tables, for a terminal, a pull request or an issue."""

import re
from collections.abc import Iterable, Sequence

from kernelwright.core.foreign import visible
from kernelwright.core.ledger import HEAD
from kernelwright.report import wording
from kernelwright.report.axes import percent
from kernelwright.report.lineage import drawn
from kernelwright.report.model import CertificateFact, Change, ProblemFact, Report

LISTED = 60
"""Candidates of a problem that are listed; those that led nowhere are left out first, and counted."""
SPECIAL = re.compile(
    r"[\\`*~$|#]"
    r"|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])"  # inside a word it means itself
    r"|\[(?!\d)|\](?=[(:\[])"  # an interval is no link
)
BLOCK = re.compile(r"[-+=]|\d+(?=[.)])")
"""What makes a list or a heading at the beginning of a line."""


def plain(text: str) -> str:
    """Return a text as Markdown that shows it as it is, on one line: no markup, HTML, link or mention in it counts."""
    joined = visible(" ".join(text.split()))
    escaped = joined.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = SPECIAL.sub(lambda found: f"\\{found[0]}", escaped)
    if begins := BLOCK.match(escaped):
        place = begins.end() if begins[0].isdigit() else 0
        escaped = f"{escaped[:place]}\\{escaped[place:]}"
    # A bare address becomes a link by itself, a name behind an at sign calls somebody.
    return escaped.replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")


def fenced(text: str, language: str = "") -> str:
    """Return a block of code whose fence is longer than any inside it."""
    shown = visible(text)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are escaped here."""
    lines = [
        [plain(cell) for cell in head],
        ["---"] * len(head),
        *([plain(cell) for cell in row] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def document(report: Report, picture: str) -> str:
    """Return the whole file; `picture` is the progress chart's name, empty if it could not be drawn."""
    parts = [
        f"# Kernelwright, run {plain(report.run_id)}",
        f"**{plain(report.headline)}**",
        plain(wording.about(report)),
    ]
    if report.use:
        parts += ["Use the result:", fenced(report.use, "python")]
    parts += ["## Problems", *_problems(report)]
    if picture and report.problems:
        parts += ["## Progress", f"![Best so far over the verdicts, one panel per problem]({picture})"]
        parts += [plain(words)] if (words := wording.floors(report)) else []
    if report.slices:
        parts += _slices(report)
    for problem in report.problems:
        parts += _one(problem)
    return "\n\n".join([*parts, *_endnotes(report)]) + "\n"


def _problems(report: Report) -> list[str]:
    if not report.problems:
        return ["The run has none."]
    return [table(wording.PROBLEM_HEAD, wording.problem_rows(report)), plain(wording.payback(report))]


def _slices(report: Report) -> list[str]:
    rows = [[one.name, percent(one.before), percent(one.after)] for one in report.slices]
    return [
        "## The model's time, before and after",
        table(["region", "before", "after"], rows),
        plain(wording.amdahl_caption(report)),
    ]


def _one(problem: ProblemFact) -> list[str]:
    said = [f"- {name}: {plain(words)}" for name, words in wording.outcome(problem)]
    parts = [f"## {plain(problem.name)}", "\n".join(said)]
    listed, missing = drawn(problem.experiments, LISTED)
    rows = [
        [
            str(one.number),
            f"{one.backend} by {one.author}",
            one.fate.value,
            f"×{one.speed:.3f}" if one.speed else "–",
            one.note,
            one.reason,
        ]
        for one in listed
    ]
    parts.append(table(["number", "candidate", "became", "speed", "what was tried", "why it ended so"], rows))
    if missing:
        parts.append(f"{missing} more led nowhere; results.tsv lists them.")
    parts += _changed(problem.change)
    return parts + (_certificate(problem.certificate) if problem.certificate else [])


def _changed(change: Change) -> list[str]:
    parts = ["### Winner against seed", plain(change.words)]
    if change.parameters:
        rows = [[one.name, one.before, one.after, one.cases] for one in change.parameters]
        parts.append(table(["parameter", "seed", "winner", "cases"], rows))
    return [*parts, fenced(change.diff, "diff")] if change.diff else parts


def _certificate(found: CertificateFact) -> list[str]:
    return [
        "### Certificate",
        plain(wording.certificate(found)),
        table(wording.COMPARISON_HEAD, wording.comparison_rows(found)),
        table(wording.TIME_HEAD, wording.time_rows(found)),
        table(wording.STAGE_HEAD, wording.stage_rows(found)),
    ]


def _endnotes(report: Report) -> list[str]:
    parts: list[str] = []
    if report.lessons:
        rows = [[one.claim, one.where, f"×{one.ratio:.3f}" if one.ratio else "–"] for one in report.lessons]
        parts += ["## Lessons", table(["lesson", "holds for", "effect"], rows)]
    if report.ledger:
        rows = wording.ledger_rows(report.ledger)
        parts += ["## What language models cost", table(HEAD, rows), plain(report.ledger.per_gain)]
    if report.left_out:
        rows = [
            [one.name, str(one.count), percent(one.share), f"×{one.gain:.3f}", one.why]
            for one in report.left_out
        ]
        parts += ["## Left out", table(["region", "places", "share", "gain at its floor", "why"], rows)]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {plain(note)}" for note in report.notes)]
    parts += [
        "## Settings and versions",
        table(["setting", "value"], [[name, value] for name, value in report.settings.items()]),
        table(["package", "version"], [[name, value] for name, value in report.versions.items()]),
        table(wording.EVENT_HEAD, wording.event_rows(report)),
    ]
    return parts

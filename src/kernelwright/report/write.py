"""Writes the reports into a run's folder: the one door that the end of a run and `kernelwright report` go through."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from kernelwright.core.events import Event
from kernelwright.core.manifest import FOLDER, NAME
from kernelwright.core.tree import Tree
from kernelwright.report import png
from kernelwright.report.ceilings import roof_of
from kernelwright.report.chronicle import Chronicle, chronicle, without_times
from kernelwright.report.facts import Around, facts
from kernelwright.report.html import page
from kernelwright.report.markdown import document
from kernelwright.report.model import Report
from kernelwright.report.results import results_tsv
from kernelwright.store.disk import disk_errors
from kernelwright.store.journal import Journal
from kernelwright.store.sqlite import JOURNAL_FILE

RESULTS, MARKDOWN, PAGE, PICTURE = "results.tsv", "report.md", "report.html", "progress.png"


def write_reports(folder: Path, tree: Tree, events: Iterable[Event] | None = None) -> list[Path]:
    """Write every report of a run and return the files, `progress.png` among them only if it could be drawn.

    Times come from the events: of the journal in the folder, unless they are given because it lies elsewhere.
    """
    run = in_time(folder, tree, events)
    return put_reports(folder, read_report(folder, run), results_tsv(run.tree, run.when))


def put_reports(folder: Path, report: Report, results: str) -> list[Path]:
    """Put what was read into the run's folder, one file after the other, and return them."""
    is_drawn = png.is_drawable()
    contents = {RESULTS: results.encode()}
    if is_drawn:
        contents[PICTURE] = png.picture(report)
    contents[MARKDOWN] = document(report, PICTURE if is_drawn else "").encode()
    contents[PAGE] = page(report).encode()
    with disk_errors(folder):
        if not is_drawn:  # one of an earlier state of the run would be taken for this one's
            (folder / PICTURE).unlink(missing_ok=True)
        return [_put(folder / name, content) for name, content in contents.items()]


def read_report(folder: Path, run: Chronicle) -> Report:
    """Return everything the reports of a run say."""
    kernels, started = folder / FOLDER, run.tree.started
    home = folder.resolve().parent.parent
    return facts(
        run,
        Around(
            run_id=folder.resolve().name,
            kernels=str(kernels) if (kernels / NAME).is_file() else "",
            roof=roof_of(started.device, home) if started else None,
        ),
    )


def in_time(folder: Path, tree: Tree, events: Iterable[Event] | None = None) -> Chronicle:
    """Return a run in time, from the events given or those of the journal in its folder; without, only the order."""
    if events is not None:
        return chronicle(events)
    if (folder / JOURNAL_FILE).exists():
        return chronicle(Journal.open(folder).events())
    return without_times(tree)


def _put(path: Path, content: bytes) -> Path:
    """Put a file in place in one step: a reader finds the old one or the new one, never half of it."""
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        draft = Path(file.name)
        try:
            file.write(content)
        except OSError:
            draft.unlink()
            raise
    draft.chmod(0o644)
    draft.replace(path)
    return path

"""`kernelwright report`."""

from typing import Annotated

import typer

from kernelwright.cli.screen import Answer, ExitCode, HomeOption, JsonFlag, kernelwright_home, out, print_json


class ReportAnswer(Answer):
    """What `report --json` prints."""

    run_id: str
    """Which run."""
    folder: str
    """Its folder, where the reports are."""
    headline: str
    """The run in one sentence."""
    files: list[str]
    """What was written."""
    missing: str
    """What could not be written, and how to mend that; empty if all was."""


def report(
    run: Annotated[
        str, typer.Argument(help="Run id, unique prefix, path of a run folder, or `last`.")
    ] = "last",
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Write results.tsv, report.md, report.html and progress.png of a run anew, from its journal."""
    from kernelwright.cli.runs import open_run
    from kernelwright.core.errors import NotFound
    from kernelwright.report.png import MISSING
    from kernelwright.report.results import results_tsv
    from kernelwright.report.write import PICTURE, in_time, put_reports, read_report

    journal, folder = open_run(kernelwright_home(home), run)
    if folder is None:
        raise NotFound("The folder of run", journal.run_id, "Run this on the machine that made it.")
    told = in_time(folder, journal.tree(), journal.events())
    found = read_report(folder, told)
    files = put_reports(folder, found, results_tsv(told.tree, told.when))
    answer = ReportAnswer(
        run_id=journal.run_id,
        folder=str(folder),
        headline=found.headline,
        files=[str(path) for path in files],
        missing="" if folder / PICTURE in files else MISSING,
    )
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK


def _print(answer: ReportAnswer) -> None:
    console = out()
    console.print(answer.headline, markup=False)
    for name in answer.files:
        console.print(name, markup=False, soft_wrap=True)
    if answer.missing:
        console.print(answer.missing, markup=False)

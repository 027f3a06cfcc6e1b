"""A run by its name: its folder here, and its journal there or on the shared server the settings name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.cli.config import load_config

if TYPE_CHECKING:
    from kernelwright.store.journal import Journal

RunArgument = Annotated[
    str, typer.Argument(help="The run: its id, the beginning of it, `last`, or its folder.")
]
TrustFlag = Annotated[
    bool,
    typer.Option("--trust", help="Run what somebody else's run holds: one that lies outside of the home."),
]


def open_run(home: Path, name: str) -> "tuple[Journal, Path | None]":
    """Return the journal of a run and its folder; a run of another machine's has no folder here."""
    from kernelwright.core.errors import NotFound, UnknownName
    from kernelwright.store.journal import Journal
    from kernelwright.store.locate import LAST, find_run
    from kernelwright.store.sqlite import JOURNAL_FILE

    shared = load_config({}).journal_url
    try:
        folder = find_run(home, name)
    except (NotFound, UnknownName):
        if shared is None:
            raise
        return Journal.open(shared, None if name == LAST else name), None
    if shared is None or (folder / JOURNAL_FILE).exists():
        return Journal.open(folder), folder
    return Journal.open(shared, folder.name), folder

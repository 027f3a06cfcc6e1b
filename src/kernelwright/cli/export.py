"""`kernelwright export`: what a run holds, for use elsewhere."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelwright.cli.runs import RunArgument
from kernelwright.cli.screen import (
    Answer,
    ExitCode,
    HomeOption,
    JsonFlag,
    kernelwright_home,
    out,
    print_json,
    write_json,
)
from kernelwright.report.trajectories import UNKNOWN_LICENCE, Format

if TYPE_CHECKING:
    from kernelwright.report.trajectories import Source
    from kernelwright.store.journal import Journal


class TrajectoriesAnswer(Answer):
    """What `export trajectories --json` prints; it needs --out, for standard output takes one of the two."""

    run_id: str
    """The run."""
    format: Format
    """Shape of the lines."""
    file: str
    """Where they were written."""
    lines: int
    """How many there are."""


def app() -> typer.Typer:
    """Return the sub-commands."""
    group = typer.Typer(
        help="Write what a run holds, for use elsewhere.", no_args_is_help=True, rich_markup_mode=None
    )

    @group.callback()
    def options() -> None:
        """Write what a run holds, for use elsewhere."""

    group.command("trajectories")(trajectories)
    return group


def trajectories(
    run: RunArgument = "last",
    shape: Annotated[Format, typer.Option("--format", help="Shape of the lines.")] = Format.JSONL,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="File to write. Default: standard output.")
    ] = None,
    licence: Annotated[
        str, typer.Option(help="Licence of the candidates that are not ours; seeds are Apache-2.0.")
    ] = UNKNOWN_LICENCE,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Write every judged candidate as training data: task, context, source, verdict, reward; secrets removed."""
    from kernelwright.cli.runs import open_run
    from kernelwright.core.errors import BadInput
    from kernelwright.report.trajectories import lines

    if as_json and out_file is None:
        raise BadInput("--json", "the lines themselves go to standard output", "Pass --out FILE too.")
    journal, folder = open_run(kernelwright_home(home), run)
    found = lines(_source(journal, folder, licence), shape)
    if out_file is None:
        for line in found:
            write_json(line)
        return ExitCode.OK
    count = _write(out_file, found)
    answer = TrajectoriesAnswer(run_id=journal.run_id, format=shape, file=str(out_file), lines=count)
    if as_json:
        print_json(answer)
    else:
        out().print(f"{out_file}: {count} lines of {shape.value} from run {journal.run_id}", markup=False)
    return ExitCode.OK


def _write(path: Path, found: Iterator[str]) -> int:
    from kernelwright.store.disk import disk_errors, replace_file

    texts = list(found)
    with disk_errors(path):
        replace_file(path.resolve(), "".join(f"{line}\n" for line in texts).encode())
    return len(texts)


def _source(journal: "Journal", folder: Path | None, licence: str) -> "Source":
    """Return a run to be exported, with everything that is known to be private here."""
    import getpass
    import os
    import socket

    from kernelwright.core.errors import BlobMissing
    from kernelwright.engine.asking import contract
    from kernelwright.report.trajectories import Source
    from kernelwright.store.blobs import Blobs
    from kernelwright.store.secrets import known_secrets

    def text(blob_hash: str) -> bytes:
        if folder is None:
            raise BlobMissing(blob_hash, "lies in the run's folder on another machine")
        return Blobs(folder / "blobs").get(blob_hash)

    names = {os.environ.get("USER", ""), os.environ.get("LOGNAME", ""), socket.gethostname()}
    with suppress(KeyError, OSError):  # a container may have no name for its user
        names.add(getpass.getuser())
    return Source(
        run_id=journal.run_id,
        tree=journal.tree(),
        bodies=journal.bodies(),
        text=text,
        contract=contract,
        licence=licence,
        secrets=known_secrets(os.environ),
        homes=(str(Path.home()), os.environ.get("HOME", "")),
        names=tuple(sorted(names - {""})),
    )

"""`kernelwright new`: a folder with a function's reference and a candidate that one command judges."""

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.screen import Answer, ExitCode, JsonFlag, out, print_json, telling
from kernelwright.cli.tune import TensorOption


class NewAnswer(Answer):
    """What `new --json` prints."""

    folder: str
    """The folder that was written, or the file that regions were put back into."""
    files: list[str]
    """The files in it."""
    command: str
    """The command that judges the candidate, in the folder; empty if regions were put back."""
    note: str
    """What judging it on this machine cannot do; empty if it can do everything."""
    todo: str
    """What is to be filled in before the candidate can pass; empty if it is complete."""
    regions: list[str]
    """Marked regions of the candidate: nothing outside them may change."""


def new(
    function: Annotated[
        str | None, typer.Argument(help="The function: `path.py:function` or `package.module:function`.")
    ] = None,
    inputs: TensorOption = None,
    into: Annotated[
        Path | None,
        typer.Option(help="Folder to write; must be empty or not there. Default: the function's name."),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="Language of the candidate: cpp, cuda, triton, python.")
    ] = "cpp",
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Start from this .cpp or .cu file; its marked regions are what may change."
        ),
    ] = None,
    op: Annotated[
        str | None, typer.Option(help="With --from and no function: the kernel type the file implements.")
    ] = None,
    back: Annotated[
        Path | None,
        typer.Option("--back", help="Put the marked regions of this candidate into the --from file."),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Write a folder in which a kernel for a function is edited and judged, or take its marked regions back."""
    from kernelwright.core.errors import BadInput
    from kernelwright.core.model_spec import parse_input
    from kernelwright.engine.starting import LANGUAGES, Beginning, begin
    from kernelwright.engine.tuning import TuneWish

    if back is not None:
        return _put_back(source, back, as_json)
    if backend not in LANGUAGES:
        raise BadInput(
            "--backend", f"there is no candidate in {backend!r}", f"Known: {', '.join(LANGUAGES)}."
        )
    if (function is None) == (op is None):
        remedy = "Give a function, or --from FILE with --op NAME."
        raise BadInput("command line", "what the kernel computes is not clear", remedy)
    if op is not None:
        _check_op(op, source)
    wish = TuneWish(function, tuple(parse_input(text) for text in inputs or ())) if function else None
    name = function.rpartition(":")[2] if function else str(op)
    beginning = Beginning(into or Path(name.replace(".", "_")), backend, source, op)
    with telling("starting") as tell:
        started = begin(beginning, wish, tell)
    answer = NewAnswer(
        folder=str(started.folder),
        files=list(started.files),
        command=started.command,
        note=started.note,
        todo=started.todo,
        regions=list(started.regions),
    )
    print_json(answer) if as_json else _print(answer)
    return ExitCode.OK


def _check_op(op: str, source: Path | None) -> None:
    from kernelwright.core import plugins
    from kernelwright.core.errors import BadInput, UnknownName

    if source is None:
        raise BadInput("--op", "an op has seeds of its own", "Give --from FILE, or a function instead.")
    if op not in plugins.names("ops"):
        raise UnknownName("op", op, plugins.names("ops"))


def _put_back(source: Path | None, back: Path, as_json: bool) -> int:
    from kernelwright.core.errors import BadInput
    from kernelwright.engine.starting import put_into

    if source is None:
        raise BadInput(
            "--back", "where to is not said", "Give --from FILE, the file the candidate came from."
        )
    changed = put_into(source, back)
    answer = NewAnswer(folder=str(source), files=[str(source)], command="", note="", todo="", regions=[])
    if as_json:
        print_json(answer)
    else:
        word = "has the regions of" if changed else "already has the regions of"
        out().print(f"{source} {word} {back}; every byte outside them is as it was", markup=False)
    return ExitCode.OK


def _print(answer: NewAnswer) -> None:
    import shlex

    console = out()
    console.print(f"{answer.folder}: {', '.join(answer.files)}", markup=False)
    if answer.todo:
        console.print(f"to be filled in: {answer.todo}", markup=False)
    if answer.note:
        console.print(answer.note, markup=False)
    if answer.regions:
        console.print(f"only these regions may change: {', '.join(answer.regions)}", markup=False)
    console.print(f"cd {shlex.quote(answer.folder)} && {answer.command}", markup=False, soft_wrap=True)

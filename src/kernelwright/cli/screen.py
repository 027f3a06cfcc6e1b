"""What every verb needs to talk to a person or a program."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict
from rich.console import Console

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of runs and caches. Default: KERNELWRIGHT_HOME or ~/.kernelwright."),
]


class ExitCode(IntEnum):
    """How a command ends."""

    OK = 0
    """It did what was asked."""
    NEGATIVE = 1
    """It worked, and the answer is no: a candidate rejected, a journal damaged."""
    USAGE = 2
    """The command line itself was wrong."""
    MISTAKE = 3
    """Something the user can mend; one line says what and how."""
    BUG = 4
    """Our own fault; --debug shows the traceback."""
    INTERRUPTED = 130
    """Ctrl-C; everything journalled so far is safe."""


class Answer(BaseModel):
    """Base of what a verb prints with --json; fields carry their documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def out() -> Console:
    """Return the console for answers; colours only on a terminal."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """Return the console for progress and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


@contextmanager
def telling(first: str) -> Iterator[Callable[[str], None]]:
    """Give a function that tells how far things are: in one changing line on a terminal, line by line elsewhere."""
    console = err()
    if console.is_terminal:
        with console.status(first) as status:
            yield lambda text: status.update(text)
    else:
        yield lambda text: console.print(text, markup=False)


def print_json(answer: BaseModel) -> None:
    """Print an answer as one JSON object."""
    sys.stdout.write(answer.model_dump_json(indent=2) + "\n")


def kernelwright_home(option: Path | None) -> Path:
    """Return the folder of runs and caches."""
    import os

    from kernelwright.store.locate import home

    return option if option is not None else home(os.environ)

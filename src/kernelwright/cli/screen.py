"""What every verb needs to talk to a person or a program.

Much of what is shown was written by others: candidates, compilers, models, imported files. None of it can steer a
terminal, nor pose as markup.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ConfigDict
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from kernelwright.core.foreign import HIDING, visible

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


class Screen(Console):
    """A console that shows texts as they are: brackets are no markup, and what cannot be seen becomes a mark."""

    def __init__(self, *, stderr: bool = False) -> None:
        is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=not is_terminal)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is to be written; only rich's own controls stay controls."""
        for one in super().render(renderable, options):
            yield one if one.control else Segment(visible(one.text), one.style)


def out() -> Console:
    """Return the console for answers; colours only on a terminal."""
    return Screen()


def err() -> Console:
    """Return the console for progress and errors."""
    return Screen(stderr=True)


@contextmanager
def telling(first: str) -> Iterator[Callable[[str], None]]:
    """Give a function that tells how far things are: in one changing line on a terminal, line by line elsewhere."""
    console = err()
    if console.is_terminal:
        # As Text: a status takes every other text for markup, whatever the console says.
        with console.status(Text(first)) as status:
            yield lambda text: status.update(Text(text))
    else:
        yield lambda text: console.print(text, markup=False)


def print_json(answer: BaseModel) -> None:
    """Print an answer as one JSON object."""
    write_json(answer.model_dump_json(indent=2))


def write_json(text: str) -> None:
    """Write JSON, the same value in characters that can all be seen: JSON's own escapes stop at the first 32."""
    sys.stdout.write(HIDING.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n")


def kernelwright_home(option: Path | None) -> Path:
    """Return the folder of runs and caches, as it is found from any working folder: other processes have their own."""
    import os

    from kernelwright.store.locate import home

    return (option if option is not None else home(os.environ)).absolute()

"""Words of others: what candidates, compilers, authors and imported files wrote, before it is shown or quoted.

Such words may hold what steers a terminal, hides code from a reader, or poses as a part of a prompt. They are made
harmless where they enter our types, so that no screen, page or prompt has to think of it.
"""

import re
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

# Controls, marks that turn the direction of text or take no room, halves of a pair: all of them can hide code from a
# reader, some steer a terminal, and some end a document early. Newline and tab stay.
HIDING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
MARK = "\ufffd"
TICKS = re.compile("`{3,}")
MOST_IN_A_LINE, MOST_IN_A_NOTE, MOST_IN_A_NAME = 1000, 4000, 200
"""Characters of a sentence, of an author's note, and of a name or a hash: a longer one is none."""
MOST_IN_A_FILE = 1 << 20
"""Characters of a source and of what stands in it."""


def visible(text: str) -> str:
    """Return a text with everything that cannot be seen replaced by a mark that can; it grows no longer by that."""
    return HIDING.sub(MARK, text.replace("\r\n", "\n"))


def in_a_line(text: str, most: int = MOST_IN_A_LINE) -> str:
    """Return a text as one visible line of bounded length: it cannot pose as a part of what it is quoted in."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def fenced(text: str, language: str = "") -> str:
    """Return a text in a fence that nothing inside it can close."""
    ticks = "`" * (1 + max((len(run) for run in TICKS.findall(text)), default=2))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}"


def _in_one_line(name: str) -> str:
    if name != in_a_line(name):
        raise ValueError(
            f"{in_a_line(name, 40)!r} is no name: it has several lines, or holds what cannot be seen"
        )
    return name


Visible = Annotated[str, AfterValidator(visible)]
"""Words of others, of any length and in any number of lines."""
Line = Annotated[str, AfterValidator(in_a_line)]
"""Words of others in one bounded line; what is longer is cut."""
Note = Annotated[str, AfterValidator(partial(in_a_line, most=MOST_IN_A_NOTE))]
"""The same for what an author says of its own work."""
Name = Annotated[str, Field(max_length=MOST_IN_A_NAME), AfterValidator(_in_one_line)]
"""A name or a hash of others'; one that is too long or poses as something else is refused."""

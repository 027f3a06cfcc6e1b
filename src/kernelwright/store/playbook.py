"""The playbook's file format: one Markdown file per technique, TOML between `+++` lines in front of it.

    +++
    title = "..."
    tier = 1                            # to 6
    bottlenecks = ["memory bandwidth"]
    backends = ["triton"]               # or "any", as for ops and archs
    ops = "any"
    archs = ["hopper"]
    move = "none"                       # or the move's name
    [gain]
    low = 1.1
    high = 1.5
    basis = "measured"                  # or "expected"
    source = "..."
    +++

and behind it the sections of `HEADINGS`. A code block that is a whole source says behind its language what it is built
for: `python softmax 4096x4096 fp16 sm_90`. Everything is checked; an error names file, field and next step.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import kernelwright
from kernelwright.core import plugins
from kernelwright.core.errors import BadInput
from kernelwright.core.technique import HEADINGS, Technique, Wanted, chosen

FENCE = "+++"
ANY = "any"
"""In place of a list: every backend, op or architecture."""
NONE = "none"
"""In place of a move's name: there is none."""
FIELDS = ("title", "tier", "bottlenecks", "backends", "ops", "archs", "gain", "move")
OPEN_FIELDS = ("backends", "ops", "archs")
"""Fields that may say `any`."""


def playbook_folder() -> Path:
    """Return the folder of the cards that come with the package."""
    return Path(kernelwright.__file__).parent / "playbook"


def read_playbook(folder: Path | None = None) -> list[Technique]:
    """Return every card of a folder, by tier and name."""
    ops = plugins.names("ops")
    files = sorted((folder or playbook_folder()).glob("*.md"))
    return chosen((read_card(path, ops) for path in files), Wanted())


def read_card(path: Path, ops: Sequence[str]) -> Technique:
    """Return the card in a file; `ops` are the kernel types it may name."""
    front, body = _parted(path)
    if unknown := [key for key in front if key not in FIELDS]:
        raise _bad(path, unknown[0], "is not a field", f"Use {', '.join(FIELDS)}.")
    if missing := [key for key in FIELDS if key not in front]:
        raise _bad(path, missing[0], "is missing", f"Every card has {', '.join(FIELDS)}.")
    values = {key: _opened(path, key, value) for key, value in front.items()}
    for op in values["ops"]:
        if op not in ops:
            raise _bad(path, "ops", f"names {op!r}", f'Write "{ANY}" or some of {", ".join(ops)}.')
    values["move"] = None if front["move"] == NONE else front["move"]
    _check_sections(path, body)
    try:
        return Technique.model_validate(values | {"name": path.stem, "body": body.strip() + "\n"})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "card"
        raise _bad(path, field, first["msg"], "See docs/playbook.md for the format.") from error


def _bad(path: Path, field: str, problem: str, remedy: str) -> BadInput:
    return BadInput(f"playbook/{path.name}", f"{field!r} {problem}", remedy)


def _parted(path: Path) -> tuple[dict[str, Any], str]:
    """Return front matter and body. `Any`: checked field by field afterwards."""
    lines = path.read_text("utf-8").splitlines()
    if not lines or lines[0].strip() != FENCE or FENCE not in (line.strip() for line in lines[1:]):
        raise _bad(path, "front matter", "is not between two lines of +++", "Put it first in the file.")
    end = next(number for number, line in enumerate(lines[1:], 1) if line.strip() == FENCE)
    try:
        return tomllib.loads("\n".join(lines[1:end])), "\n".join(lines[end + 1 :])
    except tomllib.TOMLDecodeError as error:
        raise _bad(path, "front matter", f"is not TOML: {error}", "Mend that line.") from error


def _opened(path: Path, key: str, value: Any) -> Any:
    """Return a field's value, `any` as the empty tuple. `Any`: TOML's own types, validated by the noun."""
    if key not in OPEN_FIELDS:
        return value
    if value == ANY:
        return ()
    if not isinstance(value, list) or not value:
        raise _bad(path, key, f"is {value!r}", f'Write "{ANY}" or a list of names.')
    return value


def _check_sections(path: Path, body: str) -> None:
    """Raise unless the body has exactly the sections of a card, in order, none of them empty."""
    found, filled, fenced = [], [], False
    for line in body.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            found.append(line[3:].strip())
            filled.append(False)
        elif line.strip():
            if not found:
                raise _bad(path, "body", "starts without a heading", f"Start with '## {HEADINGS[0]}'.")
            filled[-1] = True
    if found != list(HEADINGS):
        raise _bad(path, "body", f"has the sections {found}", f"Write {list(HEADINGS)}, in this order.")
    if not all(filled):
        raise _bad(path, found[filled.index(False)], "is empty", "Write something under it.")
    if fenced:
        raise _bad(path, "body", "leaves a code block open", "Close it with ```.")

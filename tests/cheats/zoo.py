"""The honest zoo as data: legitimate kernels that look strange, and what the header of each says."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.cheats.specimen import LANGUAGES

ZOO = Path(__file__).parent / "honest_zoo"
FIELD = re.compile(r"(op|backend|runs): (\w+)")


@dataclass(frozen=True)
class Animal:
    """What the header of a file says, and the source."""

    name: str
    op: str
    backend: str
    runs: str
    sentence: str
    source: str


def read(path: Path) -> Animal:
    """Return what is in a file; a header that lacks a field is a mistake of ours."""
    comment = "# " if path.suffix == ".py" else "// "
    source = path.read_text()
    lines = [line.removeprefix(comment) for line in source.splitlines()[:4] if line.startswith(comment)]
    fields = {found[1]: found[2] for line in lines if (found := FIELD.fullmatch(line))}
    if len(lines) != 4 or fields.keys() != {"op", "backend", "runs"}:
        raise ValueError(f"{path.name}: the header must be op, backend, runs and one sentence")
    return Animal(path.name, fields["op"], fields["backend"], fields["runs"], lines[3], source)


ANIMALS = tuple(read(path) for path in sorted(ZOO.iterdir()) if path.suffix in LANGUAGES)

"""Lessons and winners as lines of JSON, to be carried from one home folder to another.

Each line is an object with `schema`, one of `lesson` (with its sightings) and `winner`, and `hash`: the digest of the
rest in its one spelling. A line that was changed, cut or written by a newer version is refused by number, and nothing
of its file is taken over.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from kernelwright.core.errors import BadInput
from kernelwright.core.frozen import Frozen, canonical_json, digest
from kernelwright.core.shelf import EarlierWinner, KeptLesson
from kernelwright.store.lessons import SHELF_SCHEMA, Findings

KINDS: dict[str, type[Frozen]] = {"lesson": KeptLesson, "winner": EarlierWinner}


def lines_of(lessons: Iterable[KeptLesson], winners: Iterable[EarlierWinner]) -> Iterator[str]:
    """Yield the lines of an export."""
    for one in lessons:
        yield _line("lesson", one)
    for winner in winners:
        yield _line("winner", winner)


def _line(kind: str, body: Frozen) -> str:
    rest: dict[str, object] = {"schema": SHELF_SCHEMA, kind: body.model_dump(mode="json")}
    return canonical_json(rest | {"hash": digest(canonical_json(rest))})


def findings_in(text: str, where: str) -> Findings:
    """Return what the lines of a file hold, all of them sound."""
    learnt, seen, winners = [], [], []
    # At newlines alone: a source may hold what else Python takes for the end of a line.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        body = _read(line, f"{where}, line {number}")
        if isinstance(body, EarlierWinner):
            winners.append(body)
        elif isinstance(body, KeptLesson) and body.sightings:
            first, *others = body.sightings
            learnt.append((body.lesson, first))
            seen += [(body.lesson.key, one) for one in others]
    return Findings(learnt, seen, winners)


def _read(line: str, where: str) -> Frozen:
    try:
        # `Any`: JSON's own types, validated by the noun.
        found: dict[str, Any] = json.loads(line)
        claimed, schema = found.pop("hash"), found["schema"]
        kind = next(name for name in KINDS if name in found)
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise BadInput(
            where, "it is no exported lesson", "Give a file of `kernelwright lessons export`."
        ) from error
    if not isinstance(schema, int) or schema > SHELF_SCHEMA:
        raise BadInput(where, f"its schema is {schema}, known is {SHELF_SCHEMA}", "Use a newer kernelwright.")
    if digest(canonical_json(found)) != claimed:
        raise BadInput(where, "its hash does not match its content", "Export it again.")
    try:
        return KINDS[kind].model_validate(found[kind])
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise BadInput(where, problem, "Export it again.") from error

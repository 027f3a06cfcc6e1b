"""The hash chain over stored text: how an event is linked, and how the first damaged one is found.

Everything is checked against the text as stored, never against a model dumped again: a later version may
spell the same body differently. Whoever rewrites every hash from some event on, and the run's row with them,
is not found out: the chain shows damage and edits, it is no signature.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from kernelwright.core.events import BODY, GENESIS, SCHEMA, Body, chain_hash
from kernelwright.core.frozen import Frozen
from kernelwright.store.summary import Summary


class StoredEvent(NamedTuple):
    """One row of `events`. SQLite keeps what it is given: after tampering the types may lie."""

    seq: int
    at: str
    schema_version: int
    kind: str
    body: str
    hash: str


class StoredRun(NamedTuple):
    """One row of `runs`."""

    run_id: str
    schema_version: int
    events: int
    head: str
    summary: str
    created_at: str
    updated_at: str


class Fault(StrEnum):
    """What can be wrong with a journal."""

    CHANGED = "changed"
    """A field of the event is not what its hash was made from, or the hash itself was changed."""
    REORDERED = "reordered"
    """The event's content lies at another place of the journal."""
    MISSING = "missing"
    """The event is not there, but later ones are."""
    MISSING_TAIL = "missing_tail"
    """The event and all after it are not there, but the run's row counts them."""
    EXTRA = "extra"
    """The event is there, but the run's row does not count it."""
    UNREADABLE = "unreadable"
    """The event is as it was written, but its body is not one this version knows."""
    WRONG_ROW = "wrong_row"
    """Every event is sound, but the run's row does not agree with them."""


class Sound(Frozen):
    """A journal in which every event and the run's row agree."""

    verdict: Literal["sound"] = "sound"
    events: int = Field(ge=0)
    """How many events were checked."""
    head: str
    """Hash of the last one."""


class Damaged(Frozen):
    """A journal with a fault, the first one found from the start."""

    verdict: Literal["damaged"] = "damaged"
    fault: Fault
    """What kind of damage."""
    seq: int | None
    """The first bad event; None if the run's row is at fault."""
    problem: str
    """What is wrong, in one sentence."""


def link(previous: str, seq: int, at: str, body: Body) -> StoredEvent:
    """Return a new event chained to the hash before it."""
    text = body.model_dump_json()
    return StoredEvent(seq, at, SCHEMA, body.kind, text, chain_hash(previous, seq, at, SCHEMA, text))


def verify(row: StoredRun, read: Callable[[], Iterable[StoredEvent]]) -> Sound | Damaged:
    """Walk all events in the order of their numbers and return the first fault, or that there is none."""
    if type(row.events) is not int:
        return _wrong_row(f"it counts {row.events!r} events")
    try:
        summary = Summary(run_id=row.run_id, created_at=datetime.fromisoformat(row.created_at))
    except (TypeError, ValueError):
        return _wrong_row(f"its time of creation is {row.created_at!r}")
    head, newest = GENESIS, row.schema_version
    for place, event in enumerate(read()):
        if fault := _fault(event, place, head, row):
            return _reordered(head, event, read()) or fault if fault.fault is Fault.CHANGED else fault
        try:
            body, at = BODY.validate_json(event.body), datetime.fromisoformat(event.at)
        except ValueError as error:
            first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            return Damaged(fault=Fault.UNREADABLE, seq=place, problem=f"it cannot be read: {first}")
        if body.kind != event.kind:
            problem = f"it is filed as {event.kind!r} but its body is {body.kind!r}"
            return Damaged(fault=Fault.CHANGED, seq=place, problem=problem)
        summary = summary.after(body, at)
        head, newest = event.hash, event.schema_version
    return _row_fault(row, head, newest, summary) or Sound(events=summary.events, head=head)


def _fault(event: StoredEvent, place: int, previous: str, row: StoredRun) -> Damaged | None:
    """Return what is wrong with the event found at a place, judged by its number and hash."""
    if type(event.seq) is not int or event.seq < place:
        seq = event.seq if type(event.seq) is int else place
        return Damaged(fault=Fault.EXTRA, seq=seq, problem=f"an event is numbered {event.seq!r}")
    if event.seq > place:
        problem = f"event {place} is missing, the next one there is {event.seq}"
        return Damaged(fault=Fault.MISSING, seq=place, problem=problem)
    if place == row.events and row.head == previous:
        return Damaged(fault=Fault.EXTRA, seq=place, problem=f"the run's row counts {row.events} events only")
    if _hash_of(previous, place, event) != event.hash:
        return Damaged(fault=Fault.CHANGED, seq=place, problem="its content and its hash do not agree")
    return None


def _hash_of(previous: str, seq: int, event: StoredEvent) -> str | None:
    """Return the hash the event's content would have at a place, None if it is not even text."""
    if not (isinstance(event.at, str) and type(event.schema_version) is int and isinstance(event.body, str)):
        return None
    try:
        return chain_hash(previous, seq, event.at, event.schema_version, event.body)
    except UnicodeEncodeError:
        return None


def _reordered(previous: str, bad: StoredEvent, events: Iterable[StoredEvent]) -> Damaged | None:
    """Return where the right content of a bad event lies, if it is in the journal.

    Whole rows, everything but the hash, or bodies alone may have changed places: each is tried, and only
    content that fits the chain exactly counts.
    """
    for event in events:
        moved = _hash_of(previous, bad.seq, event) in (event.hash, bad.hash)
        if moved or _hash_of(previous, bad.seq, bad._replace(body=event.body)) == bad.hash:
            problem = f"its content was found at event {event.seq}"
            return Damaged(fault=Fault.REORDERED, seq=bad.seq, problem=problem)
    return None


def _row_fault(row: StoredRun, head: str, newest: int, summary: Summary) -> Damaged | None:
    """Return what is wrong with the run's row, all events being sound."""
    if row.events > summary.events and row.head != head:
        problem = f"the run's row counts {row.events} events, there are {summary.events}"
        return Damaged(fault=Fault.MISSING_TAIL, seq=summary.events, problem=problem)
    if row.events != summary.events:
        return _wrong_row(f"it counts {row.events} events, there are {summary.events}")
    if row.head != head:
        return _wrong_row("its head is not the hash of the last event")
    if row.schema_version != newest:
        return _wrong_row(f"its schema is {row.schema_version}, the last event's {newest}")
    try:
        stored, updated = Summary.model_validate_json(row.summary), datetime.fromisoformat(row.updated_at)
    except (TypeError, ValueError):
        return _wrong_row("its summary or its time cannot be read")
    if stored != summary:
        return _wrong_row("its summary is not that of the events")
    if updated != (summary.last_event_at or summary.created_at):
        return _wrong_row("its time is not that of the last event")
    return None


def _wrong_row(problem: str) -> Damaged:
    return Damaged(fault=Fault.WRONG_ROW, seq=None, problem=problem)

"""The journal: append-only events, one writer, any number of readers; the only state of a run.

1. The writer takes the run's lock and opens the database with durable commits.
2. An append reads the run's row, chains each event to the one before, folds it into the stored summary, and
   commits events and row together: when it returns they are on disk, when it raises nothing of them is.
3. Readers open the same database without a lock and see whole appends only.
"""

import gc
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Select, bindparam, insert, make_url, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError, DBAPIError

from kernelwright.core.errors import (
    BadConfig,
    JournalCorrupt,
    JournalTooNew,
    NotWritable,
    ServiceDied,
    UnknownName,
)
from kernelwright.core.events import BODY, GENESIS, SCHEMA, Body, Event, chain_hash
from kernelwright.core.tree import Tree, fold
from kernelwright.store.chain import Damaged, Sound, StoredEvent, StoredRun, link, verify
from kernelwright.store.postgres import PostgresServer
from kernelwright.store.sqlite import JOURNAL_FILE, SqliteFile
from kernelwright.store.summary import Summary
from kernelwright.store.tables import EVENTS, RUNS, Database

Clock = Callable[[], datetime]
T = TypeVar("T")
Walk = Generator[T, None, None]
"""Closed as soon as it is left, and with it the state of the database that it keeps from being tidied up."""

ROWS_AT_ONCE = 500
"""Rows fetched together: few enough that a walk over a million events stays small."""
EVENT_COLUMNS = tuple(EVENTS.c[name] for name in StoredEvent._fields)

# Built once: composing them for every append took as long as running them.
ONLY_RUN = select(*(RUNS.c[name] for name in StoredRun._fields)).limit(2)
SELECT_RUN = select(*(RUNS.c[name] for name in StoredRun._fields)).where(RUNS.c.run_id == bindparam("run"))
UPDATE_RUN = update(RUNS).where(RUNS.c.run_id == bindparam("run"))
INSERT_EVENTS = insert(EVENTS)


def utc_now() -> datetime:
    """Return the time of the machine's clock."""
    return datetime.now(UTC)


def database_at(place: Path | str) -> Database:
    """Return the database of a run folder, or of a SQLAlchemy URL."""
    if isinstance(place, Path) or "://" not in place:
        return SqliteFile(Path(place) / JOURNAL_FILE)
    try:
        url = make_url(place)
    except (ArgumentError, ValueError) as error:  # the latter for a port that is no number
        raise BadConfig(
            "journal_url", "not a database URL", "Write postgresql://user@host/database."
        ) from error
    match url.get_backend_name():
        case "postgresql":
            return PostgresServer(url)
        case "sqlite" if url.database and url.database != ":memory:":
            return SqliteFile(Path(url.database))
        case other:
            raise BadConfig(
                "journal_url",
                f"cannot keep a journal in {other!r}",
                "Give a postgresql URL or a sqlite file.",
            )


class Journal:
    """A run's events, for reading."""

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self.run_id = run_id

    @staticmethod
    def create(place: Path | str, run_id: str, clock: Clock = utc_now) -> "JournalWriter":
        """Start the journal of a new run in a folder or on a server, and hold it for writing."""
        database = database_at(place)
        with _ours(database, writing=True), ExitStack() as held:
            first = partial(_insert_run, database, run_id, clock().astimezone(UTC))
            connection = held.enter_context(database.writing(run_id, first=first))
            return JournalWriter(database, run_id, Lease(connection, held.pop_all()), clock)

    @staticmethod
    def open_for_writing(
        place: Path | str, run_id: str | None = None, clock: Clock = utc_now
    ) -> "JournalWriter":
        """Hold an existing journal for writing; its row must agree with its last event."""
        database = database_at(place)
        with _ours(database, writing=True), ExitStack() as held:
            connection = held.enter_context(database.writing(run_id, first=None))
            with connection.begin():
                row = _run_row(database, connection, run_id)
                _check_head(database, connection, row)
            return JournalWriter(database, row.run_id, Lease(connection, held.pop_all()), clock)

    @staticmethod
    def open(place: Path | str, run_id: str | None = None) -> "Journal":
        """Open a journal for reading; the run's id is needed only where a database holds several."""
        database = database_at(place)
        with _ours(database, writing=False), database.reading() as connection:
            return Journal(database, _run_row(database, connection, run_id).run_id)

    @property
    def name(self) -> str:
        """Return how messages name the place of the journal."""
        return self._database.name

    def summary(self) -> Summary:
        """Return the run at a glance, from its row alone."""
        with _ours(self._database, writing=False), self._database.reading() as connection:
            return _stored_summary(self._database, _run_row(self._database, connection, self.run_id))

    def events(self, start: int = 0) -> Walk[Event]:
        """Yield events from number `start` on."""
        with closing(self._walk(start, EVENTS.c.at, EVENTS.c.hash)) as walk:
            for body, (seq, schema_version, _, at, hash_) in walk:
                try:
                    when = datetime.fromisoformat(at)
                    event = Event(seq=seq, at=when, schema_version=schema_version, body=body, hash=hash_)
                except (TypeError, ValueError) as error:
                    raise JournalCorrupt(self.name, f"event {seq} cannot be read") from error
                yield event

    def bodies(self, start: int = 0) -> Walk[Body]:
        """Yield what happened, without when and without hashes: what a fold needs."""
        with closing(self._walk(start)) as walk:
            for body, _ in walk:
                yield body

    def tree(self) -> Tree:
        """Return the state of the run, folded from all its events."""
        with _no_collections(), closing(self.bodies()) as bodies:
            try:
                return fold(bodies)
            except ValueError as error:
                raise JournalCorrupt(self.name, str(error)) from error

    def verify(self) -> Sound | Damaged:
        """Walk the whole chain and name the first event that is not as it was written."""
        with _ours(self._database, writing=False), self._database.reading() as connection:
            row = _run_row(self._database, connection, self.run_id)
            query = _events_query(self.run_id, *EVENT_COLUMNS)
            return verify(row, lambda: map(StoredEvent._make, _stream(connection, query)))

    def _walk(self, start: int, *more: ColumnElement[Any]) -> Walk[tuple[Body, Sequence[Any]]]:
        """Yield bodies and their rows (number, schema, text, more) from one state of the database.

        A gap, a newer schema or a body that does not validate ends the walk with an error, never a wrong tree.
        """
        query = _events_query(self.run_id, EVENTS.c.seq, EVENTS.c.schema_version, EVENTS.c.body, *more)
        validate = BODY.validator.validate_json  # without the adapter's own layer: 0.6 us of 12 an event
        with _ours(self._database, writing=False), self._database.reading() as connection:
            for place, row in enumerate(_stream(connection, query.where(EVENTS.c.seq >= start)), start):
                if row[0] != place:
                    raise JournalCorrupt(self.name, f"event {place} is missing")
                if row[1] != SCHEMA:
                    _check_schema(self._database, row[1], f"event {place}")
                try:
                    body: Body = validate(row[2])
                except ValidationError as error:
                    problem = f"event {place} cannot be read: {error.errors()[0]['msg']}"
                    raise JournalCorrupt(self.name, problem) from error
                yield body, row


@dataclass(frozen=True)
class Lease:
    """The writer's connection, and what frees it and its lock."""

    connection: Connection
    held: ExitStack


class JournalWriter(Journal):
    """A run's events, for appending; holds the run's lock until closed. Not to be shared between threads."""

    def __init__(self, database: Database, run_id: str, lease: Lease, clock: Clock) -> None:
        super().__init__(database, run_id)
        self._lease = lease
        self._clock = clock

    def append(self, bodies: Sequence[Body]) -> list[int]:
        """Append events in one transaction and return their numbers once they are on disk."""
        if not bodies:
            return []
        with _ours(self._database, writing=True):
            # SQLAlchemy would connect again by itself, without the lock that went with the connection.
            if self._lease.connection.invalidated:
                raise ServiceDied("journal database", "the connection is lost, and the run's lock with it")
            with self._lease.connection.begin():
                return self._append(self._lease.connection, bodies)

    def _append(self, connection: Connection, bodies: Sequence[Body]) -> list[int]:
        # The row is read every time, never remembered: it alone knows how an interrupted append ended.
        row = _run_row(self._database, connection, self.run_id)
        summary, head, now = _stored_summary(self._database, row), row.head, self._clock().astimezone(UTC)
        added: list[StoredEvent] = []
        for seq, body in enumerate(bodies, row.events):
            added.append(link(head, seq, now.isoformat(), body))
            summary, head = summary.after(body, now), added[-1].hash
        changed = row._replace(
            schema_version=SCHEMA,
            events=row.events + len(added),
            head=head,
            summary=summary.model_dump_json(),
            updated_at=now.isoformat(),
        )
        connection.execute(UPDATE_RUN, {"run": self.run_id, **changed._asdict()})
        connection.execute(INSERT_EVENTS, [{"run_id": self.run_id, **event._asdict()} for event in added])
        return [event.seq for event in added]

    def close(self) -> None:
        """Leave the journal whole in its place and free the lock; closing twice does nothing."""
        self._lease.held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _ours(database: Database, *, writing: bool) -> Iterator[None]:
    """Turn what the database says into our own errors."""
    try:
        yield
    except DBAPIError as error:
        explained = database.explain(error, writing=writing)
        if explained is None:
            raise
        raise explained from error


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause the cycle collector: events form no cycles, and walking them over and over doubled the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _events_query(run_id: str, *columns: ColumnElement[Any]) -> Select[Any]:
    return select(*columns).where(EVENTS.c.run_id == run_id).order_by(EVENTS.c.seq)


def _stream(connection: Connection, query: Select[Any]) -> Iterator[Sequence[Any]]:
    """Yield rows without holding them all."""
    yield from connection.execute(query, execution_options={"yield_per": ROWS_AT_ONCE})


def _run_row(database: Database, connection: Connection, run_id: str | None) -> StoredRun:
    """Return the row of a run, of the only one if none is named."""
    query = ONLY_RUN if run_id is None else SELECT_RUN
    found = connection.execute(query, {"run": run_id}).all()
    if not found and run_id is not None:
        raise UnknownName("run", run_id, connection.scalars(select(RUNS.c.run_id)).all())
    if not found:
        raise JournalCorrupt(database.name, "it holds no run")
    if len(found) > 1:
        raise BadConfig("journal_url", f"{database.name} holds more than one run", "Name the run.")
    row = StoredRun._make(found[0])
    _check_schema(database, row.schema_version, "the run's row")
    if type(row.events) is not int:
        raise JournalCorrupt(database.name, f"the run's row counts {row.events!r} events")
    return row


def _check_schema(database: Database, found: object, where: str) -> None:
    """Raise unless a schema version is one we read."""
    if type(found) is not int:
        raise JournalCorrupt(database.name, f"{where} has schema {found!r}")
    if found > SCHEMA:
        raise JournalTooNew(database.name, found, SCHEMA)


def _stored_summary(database: Database, row: StoredRun) -> Summary:
    try:
        return Summary.model_validate_json(row.summary)
    except ValidationError as error:
        raise JournalCorrupt(database.name, "the run's stored summary cannot be read") from error


def _insert_run(database: Database, run_id: str, now: datetime, connection: Connection) -> None:
    """Add the row of a new run, refusing one that is there."""
    query = select(RUNS.c.run_id)
    taken = connection.scalars(query.where(RUNS.c.run_id == run_id) if database.is_shared else query).first()
    if taken is not None:
        raise NotWritable(database.name, f"it already holds the journal of run {taken}")
    summary = Summary(run_id=run_id, created_at=now).model_dump_json()
    row = StoredRun(run_id, SCHEMA, 0, GENESIS, summary, now.isoformat(), now.isoformat())
    connection.execute(insert(RUNS), row._asdict())


def _check_head(database: Database, connection: Connection, row: StoredRun) -> None:
    """Raise unless the last event is the one the run's row speaks of, linked to the one before it."""
    query = select(*EVENT_COLUMNS).where(EVENTS.c.run_id == row.run_id)
    last = [
        StoredEvent._make(found) for found in connection.execute(query.order_by(EVENTS.c.seq.desc()).limit(2))
    ]
    count = last[0].seq + 1 if last else 0
    if count != row.events:
        raise JournalCorrupt(
            database.name, f"the run's row counts {row.events} events, the last is {count - 1}"
        )
    previous = last[1].hash if len(last) > 1 else GENESIS
    head = GENESIS
    if last:
        event = last[0]
        head = chain_hash(previous, event.seq, event.at, event.schema_version, event.body)
    if head != row.head or (last and head != last[0].hash):
        raise JournalCorrupt(database.name, f"its last event, {count - 1}, does not agree with the run's row")

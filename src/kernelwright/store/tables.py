"""The two tables, and what the journal asks of a database."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, MetaData, String, Table, Text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from kernelwright.core.errors import KernelwrightError

METADATA = MetaData()

RUNS = Table(
    "runs",
    METADATA,
    Column("run_id", String(200), primary_key=True),
    Column("schema_version", Integer, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("head", String(64), nullable=False),
    Column("summary", Text, nullable=False),
    Column("created_at", String(40), nullable=False),
    Column("updated_at", String(40), nullable=False),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("run_id", String(200), ForeignKey("runs.run_id"), primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", String(40), nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Column("hash", String(64), nullable=False),
)


First = Callable[[Connection], None]
"""Writes the first row of a new journal."""


class Database(Protocol):
    """Where a journal is kept: a SQLite file or a PostgreSQL server."""

    @property
    def is_shared(self) -> bool:
        """Tell whether several runs live there."""
        ...

    @property
    def name(self) -> str:
        """Return how messages name it, without a password."""
        ...

    def reading(self) -> AbstractContextManager[Connection]:
        """Open a transaction that cannot write and sees one state to its end."""
        ...

    def writing(self, run_id: str | None, *, first: First | None) -> AbstractContextManager[Connection]:
        """Open a connection with durable commits that holds the writer's lock, or raise `JournalBusy`.

        The lock is freed when its holder dies. With `first` the tables and a file's folder come into being, and it
        writes the first row: no reader finds a journal without one.
        """
        ...

    def explain(self, error: DBAPIError, *, writing: bool) -> KernelwrightError | None:
        """Return what a database's error means in our words, None if it means a bug of ours."""
        ...

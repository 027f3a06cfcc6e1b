"""A journal on a PostgreSQL server: how it is opened, locked, and what its errors mean.

Many runs may share the server; each writer holds an advisory lock of its session, which the server frees when
the connection goes, however its holder dies.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import create_engine, func, select
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from kernelwright.core.errors import (
    BadConfig,
    DiskFull,
    JournalBusy,
    JournalCorrupt,
    KernelwrightError,
    NotFound,
    NotWritable,
    ServiceDied,
)
from kernelwright.core.frozen import digest
from kernelwright.store.tables import METADATA, First

DRIVER = "postgresql+psycopg"
TABLES_LOCK = "kernelwright:tables"


@dataclass(frozen=True)
class PostgresServer:
    """The database of a server, by its SQLAlchemy URL."""

    url: URL

    @property
    def is_shared(self) -> bool:
        """Tell that a server keeps many runs."""
        return True

    @property
    def name(self) -> str:
        """Return the URL without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read-only transaction with one snapshot for all its statements."""
        engine = self._engine().execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self, run_id: str | None, *, first: First | None) -> Iterator[Connection]:
        """Open a connection that holds the run's lock for as long as it lives."""
        if run_id is None:
            raise BadConfig("journal_url", f"{self.name} may hold many runs", "Name the run to write.")
        with self._engine().connect() as connection:
            if first is not None:
                with connection.begin():
                    # Two runs may start at once, and `CREATE TABLE IF NOT EXISTS` can fail against itself.
                    connection.execute(select(func.pg_advisory_xact_lock(_key(TABLES_LOCK))))
                    METADATA.create_all(connection)
            with connection.begin():
                if not connection.scalar(
                    select(func.pg_try_advisory_lock(_key(f"kernelwright:run:{run_id}")))
                ):
                    raise JournalBusy(self.name)
                connection.exec_driver_sql("SET SESSION synchronous_commit TO on")
            if first is not None:
                with connection.begin():
                    first(connection)
            yield connection

    def explain(self, error: DBAPIError, *, writing: bool) -> KernelwrightError | None:  # noqa: ARG002
        """Return what an error of the server or its driver means."""
        state = getattr(error.orig, "sqlstate", None)
        match state:
            case "53100":  # disk_full
                return DiskFull(self.name)
            case "25006" | "42501":  # read_only_sql_transaction, insufficient_privilege
                return NotWritable(self.name, str(error.orig).strip())
            case "55P03" | "40001":  # lock_not_available, serialization_failure
                return JournalBusy(self.name)
            case "42P01":  # undefined_table
                return NotFound("Journal", self.name, "No run was ever written there.")
            case "42703" | "XX001" | "XX002":  # undefined_column, data_corrupted, index_corrupted
                return JournalCorrupt(self.name, str(error.orig).strip())
        if error.connection_invalidated:
            return ServiceDied("journal database", str(error.orig).strip())
        if isinstance(error, OperationalError):
            problem = " ".join(str(error.orig).split())
            return BadConfig(
                "journal_url", f"cannot reach {self.name}: {problem}", "Start the server or mend the URL."
            )
        return None

    def _engine(self) -> Engine:
        url = self.url.set(drivername=DRIVER) if self.url.drivername == "postgresql" else self.url
        try:
            return create_engine(url, poolclass=NullPool)
        except ModuleNotFoundError as error:
            problem = f"the driver {error.name!r} is not installed"
            raise BadConfig("journal_url", problem, "Install it: pip install 'psycopg[binary]'.") from error


def _key(name: str) -> int:
    """Return the number of an advisory lock: 64 signed bits."""
    return int.from_bytes(bytes.fromhex(digest(name))[:8], signed=True)

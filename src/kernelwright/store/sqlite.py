"""A journal in a SQLite file of the run folder: how it is opened, locked, and what its errors mean.

WAL mode lets any number of readers look on while one process writes. The writer holds `writer.lock` beside
the file; the kernel frees it when the process dies, however it dies.
"""

import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from kernelwright.core.errors import (
    DiskFull,
    JournalBusy,
    JournalCorrupt,
    KernelwrightError,
    NotFound,
    NotWritable,
)
from kernelwright.store.disk import NO_ROOM, disk_errors, make_folder, sync_folder
from kernelwright.store.tables import METADATA, First

JOURNAL_FILE = "journal.db"
LOCK_FILE = "writer.lock"
BUSY_S = 10.0
"""How long to wait for another process that is recovering or truncating the WAL."""
PROBE_BYTES = 1 << 16


@dataclass(frozen=True)
class SqliteFile:
    """The journal file of a run folder."""

    path: Path

    @property
    def is_shared(self) -> bool:
        """Tell that a run folder is one run's own."""
        return False

    @property
    def name(self) -> str:
        """Return the path."""
        return str(self.path)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read-only transaction."""
        self._require()
        with ExitStack() as stack:
            address = self._readable_address(stack)
            engine = _engine(address, begin="BEGIN", writable=False)
            connection = stack.enter_context(engine.connect())
            stack.enter_context(connection.begin())
            yield connection

    @contextmanager
    def writing(self, run_id: str | None, *, first: First | None) -> Iterator[Connection]:  # noqa: ARG002 - one lock a file
        """Lock the folder and open the file, which is put there first if it is new."""
        if first is None:
            self._require()
        else:
            with disk_errors(self.path):
                make_folder(self.path.parent)
        with _locked(self.path.with_name(LOCK_FILE), self.path):
            if first is not None:
                self._begin(first)
            with _writer(self.path, "rw") as connection:
                yield connection

    def explain(self, error: DBAPIError, *, writing: bool) -> KernelwrightError | None:
        """Return what an error of SQLite means."""
        code = getattr(error.orig, "sqlite_errorcode", None)
        match None if code is None else code & 0xFF:  # the low byte is the class, the rest the detail
            case sqlite3.SQLITE_FULL:
                return DiskFull(self.path)
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
                return JournalBusy(self.path)
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return NotWritable(self.path, str(error.orig))
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN if writing:
                # SQLite calls only ENOSPC full; a quota or a file size limit arrives as a plain I/O error.
                return DiskFull(self.path) if self._is_full() else NotWritable(self.path, str(error.orig))
            case (
                sqlite3.SQLITE_NOTADB
                | sqlite3.SQLITE_CORRUPT
                | sqlite3.SQLITE_IOERR
                | sqlite3.SQLITE_CANTOPEN
            ):
                return JournalCorrupt(self.path, str(error.orig))
            case sqlite3.SQLITE_ERROR:
                # Our statements never change, so one that SQLite cannot compile means other tables than ours.
                return JournalCorrupt(self.path, str(error.orig))
            case _:
                return None

    def _require(self) -> None:
        """Raise unless the file is there."""
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            remedy = "Give the folder of a run; if its journal is on a server, set journal_url."
            raise NotFound("Journal", self.path, remedy) from error
        except OSError as error:
            raise JournalCorrupt(self.path, f"it cannot be opened: {error.strerror}") from error

    def _begin(self, first: First) -> None:
        """Put a new journal in place whole: whoever looks finds none or one with its first row."""
        # A file that is there is either a journal, which `first` refuses, or one that was left without tables.
        part = self.path if self.path.exists() else self.path.with_name(f"{self.path.name}.part")
        if part != self.path:
            for left in part.parent.glob(f"{part.name}*"):
                left.unlink()
        with _writer(part, "rwc") as connection, connection.begin():
            METADATA.create_all(connection)
            first(connection)
        with disk_errors(self.path):
            part.replace(self.path)
            sync_folder(self.path.parent)

    def _readable_address(self, stack: ExitStack) -> str:
        """Return the address to read from, which depends on what may be written beside the file.

        A reader of a WAL file keeps an index of it (`-shm`) in the folder. Where it may not, an existing
        index is read as it is; without one the file alone is the journal, unless its writer died and left
        events in the WAL: then both are copied to where an index can be built.
        """
        file, wal, index = self.path, Path(f"{self.path}-wal"), Path(f"{self.path}-shm")
        if os.access(file.parent, os.W_OK) or (wal.exists() and index.exists()):
            return f"{file.absolute().as_uri()}?mode=ro"
        if not wal.exists() or wal.stat().st_size == 0:
            return f"{file.absolute().as_uri()}?mode=ro&immutable=1"
        copy = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernelwright-")))
        with disk_errors(copy):
            shutil.copyfile(file, copy / file.name)
            shutil.copyfile(wal, copy / wal.name)
        return f"{(copy / file.name).as_uri()}?mode=ro"

    def _is_full(self) -> bool:
        """Tell whether a file of the journal's size may not grow, by trying with one that is thrown away."""
        files = (self.path, Path(f"{self.path}-wal"))
        size = max((file.stat().st_size for file in files if file.exists()), default=0)
        try:
            with tempfile.TemporaryFile(dir=self.path.parent) as probe:
                return os.pwrite(probe.fileno(), bytes(PROBE_BYTES), size) < PROBE_BYTES
        except OSError as error:
            return error.errno in NO_ROOM


def _engine(address: str, *, begin: str, writable: bool) -> Engine:
    """Return an engine whose transactions begin as told: the driver begins none before a SELECT."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            address, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        # A byte that is not UTF-8 must reach `verify`, which names the event, and not end the walk.
        connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        try:
            if writable:
                _make_durable(connection, address)
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def _writer(file: Path, mode: str) -> Iterator[Connection]:
    """Open a file for writing and, at the end, leave everything in it and nothing in the WAL."""
    address = f"{file.absolute().as_uri()}?mode={mode}"
    with _engine(address, begin="BEGIN IMMEDIATE", writable=True).connect() as connection:
        try:
            yield connection
        finally:
            _checkpoint(connection)


def _make_durable(connection: sqlite3.Connection, address: str) -> None:
    """Set WAL mode with a sync at every commit."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise NotWritable(
            address, f"its file system cannot share memory, SQLite answers {mode!r} to WAL mode"
        )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _checkpoint(connection: Connection) -> None:
    """Move the WAL into the file, so that a copy of the file alone is whole."""
    connection.rollback()
    raw = connection.connection.driver_connection
    # What stops it (a reader in the middle of a walk, a full disk) loses nothing: the WAL stays and is read.
    with suppress(sqlite3.Error):
        if isinstance(raw, sqlite3.Connection):
            raw.execute("PRAGMA busy_timeout = 100")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _locked(file: Path, journal: Path) -> Iterator[None]:
    """Hold the writer's lock: `flock`, as a POSIX lock would not keep out a second writer of this process."""
    with disk_errors(file):
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JournalBusy(journal) from error
        yield
    finally:
        # Unlocked by name: a forked child may still hold a copy of the descriptor, and with it the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

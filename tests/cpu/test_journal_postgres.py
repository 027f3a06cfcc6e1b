"""The journal on a real PostgreSQL server, started for these tests on a socket in a temporary folder."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

from kernelwright.core.errors import (
    BadConfig,
    DiskFull,
    JournalBusy,
    JournalCorrupt,
    JournalTooNew,
    NotFound,
    NotWritable,
    ServiceDied,
    UnknownName,
)
from kernelwright.core.events import SCHEMA, Noted
from kernelwright.core.tree import fold
from kernelwright.store.chain import Damaged, Fault
from kernelwright.store.journal import Journal, JournalWriter
from kernelwright.store.postgres import PostgresServer

pytest.importorskip("psycopg", reason="no PostgreSQL driver: pip install 'psycopg[binary]'")

NOTES = [Noted(text=f"note {number} \u00e9 \x00") for number in range(1200)]


def program(name: str) -> str | None:
    """Return a server program's path; distributions keep them off PATH."""
    kept = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(kept[-1]) if kept else None)


def unprivileged() -> dict[str, Any]:
    """Return the user to run the server as: it refuses root."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in known else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    initdb, postgres = program("initdb"), program("postgres")
    if initdb is None or postgres is None:
        pytest.skip(
            "no PostgreSQL server: initdb and postgres are neither on PATH nor in /usr/lib/postgresql"
        )
    who = unprivileged()
    with tempfile.TemporaryDirectory(prefix="kw-pg-") as name:
        folder = Path(name)
        if who:
            os.chown(folder, who["user"], who["group"])
        setup = [
            initdb,
            "-D",
            f"{name}/data",
            "-U",
            "kw",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
            "--no-sync",
        ]
        subprocess.run(setup, check=True, capture_output=True, cwd=name, **who)
        options = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "client_min_messages=warning"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [postgres, "-D", f"{name}/data", "-k", name, *options],
                stdout=log,
                stderr=log,
                cwd=name,
                **who,
            )
        try:
            url = f"postgresql+psycopg://kw:secret@/postgres?host={name}"
            wait_for(url, folder / "log")
            yield url
        finally:
            process.send_signal(signal.SIGINT)  # disconnects everybody and shuts down
            process.wait(timeout=30)


def wait_for(url: str, log: Path) -> None:
    engine = create_engine(url)
    for _ in range(200):
        try:
            with engine.connect():
                return
        except OperationalError:
            time.sleep(0.05)
    pytest.fail(f"the server did not start: {log.read_text()}")


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """A database of the test's own."""
    base = f"t{abs(hash(request.node.name)):x}"
    with create_engine(server, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text(f"CREATE DATABASE {base}"))
    return server.replace("/postgres?", f"/{base}?")


def edit(url: str, statement: str) -> None:
    with create_engine(url).begin() as connection:
        connection.execute(text(statement))


def session_of(journal: JournalWriter) -> int:
    with journal._lease.connection.begin():
        return int(journal._lease.connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def test_a_run_is_kept_verified_and_folded(url: str) -> None:
    with Journal.create(url.replace("+psycopg", ""), "r1") as journal:
        assert journal.append(NOTES[:1000]) == list(range(1000))
        assert journal.append(NOTES[1000:1001]) == [1000]
    with Journal.open_for_writing(url, "r1") as journal:
        assert journal.append(NOTES[1001:])[0] == 1001
    reader = Journal.open(url)
    assert list(reader.bodies()) == NOTES
    assert reader.summary().kinds == {"noted": len(NOTES)}
    assert reader.tree() == fold(NOTES)
    assert reader.verify().model_dump(exclude={"head"}) == {"verdict": "sound", "events": len(NOTES)}


def test_a_walk_sees_the_state_it_began_with(url: str) -> None:
    with Journal.create(url, "r1") as journal:
        journal.append(NOTES)
        walk = Journal.open(url).bodies()
        first = next(walk)
        journal.append(NOTES)
        assert [first, *walk] == NOTES


def test_many_runs_share_a_server_each_with_one_writer(url: str) -> None:
    with Journal.create(url, "r1") as one, Journal.create(url, "r2") as other:
        one.append(NOTES[:2])
        other.append(NOTES[:3])
        with pytest.raises(JournalBusy):
            Journal.open_for_writing(url, "r1")
        with pytest.raises(JournalBusy):
            Journal.create(url, "r2")
    assert [Journal.open(url, name).summary().events for name in ("r1", "r2")] == [2, 3]
    with pytest.raises(BadConfig, match="more than one run"):
        Journal.open(url)
    with pytest.raises(BadConfig, match="Name the run to write"):
        Journal.open_for_writing(url)
    with pytest.raises(UnknownName, match=r"Known: r1, r2\."):
        Journal.open(url, "r3")
    with pytest.raises(NotWritable, match="already holds the journal of run r2"):
        Journal.create(url, "r2")


def test_a_killed_writer_leaves_its_events_and_not_its_lock(url: str) -> None:
    Journal.create(url, "r1").close()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            journal = Journal.open_for_writing(url, "r1")
            os.write(send, bytes([len(journal.append(NOTES[:7]))]))
            time.sleep(60)
        finally:
            os._exit(1)
    assert os.read(receive, 1) == b"\x07"
    with pytest.raises(JournalBusy):
        Journal.open_for_writing(url, "r1")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(receive)
    os.close(send)
    with opened_when_free(url) as journal:
        assert journal.append(NOTES[7:8]) == [7]
    assert Journal.open(url).verify().verdict == "sound"


def opened_when_free(url: str) -> JournalWriter:
    """Open for writing as soon as the server has noticed that the last writer is gone."""
    for _ in range(100):
        try:
            return Journal.open_for_writing(url, "r1")
        except JournalBusy:
            time.sleep(0.05)
    pytest.fail("the lock outlived its holder by five seconds")


def test_a_lost_connection_stops_the_writer_and_loses_nothing(url: str) -> None:
    with Journal.create(url, "r1") as journal:
        journal.append(NOTES[:3])
        edit(url, f"SELECT pg_terminate_backend({session_of(journal)})")
        for _ in range(2):  # never connects again by itself: the lock is gone
            with pytest.raises(ServiceDied, match="journal database"):
                journal.append(NOTES[3:4])
    with opened_when_free(url) as again:
        assert again.append(NOTES[3:4]) == [3]
    assert list(Journal.open(url).bodies()) == NOTES[:4]


@pytest.mark.parametrize(
    ("statement", "fault", "seq"),
    [
        ("UPDATE events SET body = replace(body, 'note', 'vote') WHERE seq = 4", Fault.CHANGED, 4),
        ("DELETE FROM events WHERE seq = 5", Fault.MISSING, 5),
        ("DELETE FROM events WHERE seq = 9", Fault.MISSING_TAIL, 9),
        ("UPDATE runs SET head = 'f'", Fault.WRONG_ROW, None),
    ],
)
def test_tampering_is_found_and_named(url: str, statement: str, fault: Fault, seq: int | None) -> None:
    with Journal.create(url, "r1") as journal:
        journal.append(NOTES[:10])
    edit(url, statement)
    found = Journal.open(url).verify()
    assert isinstance(found, Damaged)
    assert (found.fault, found.seq) == (fault, seq)


def test_who_may_only_read_is_told_so(url: str) -> None:
    with Journal.create(url, "r1") as journal:
        journal.append(NOTES[:2])
    guest = f"guest{abs(hash(url)):x}"
    edit(url, f"CREATE ROLE {guest} LOGIN")
    edit(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {guest}")
    edit(url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    theirs = url.replace("kw:secret@", f"{guest}@")
    assert Journal.open(theirs).summary().events == 2
    with (
        Journal.open_for_writing(theirs, "r1") as journal,
        pytest.raises(NotWritable, match="permission denied"),
    ):
        journal.append(NOTES[2:3])
    with pytest.raises(NotWritable, match="permission denied"):
        Journal.create(theirs, "r2")
    assert Journal.open(url).summary().events == 2


def test_a_database_without_a_journal_a_newer_one_and_a_broken_one_are_told_apart(url: str) -> None:
    with pytest.raises(NotFound, match="No run was ever written there"):
        Journal.open(url)
    Journal.create(url, "r1").close()
    edit(url, f"UPDATE runs SET schema_version = {SCHEMA + 1}")
    with pytest.raises(JournalTooNew):
        Journal.open(url)
    edit(url, "ALTER TABLE runs DROP COLUMN head")
    with pytest.raises(JournalCorrupt, match="head"):
        Journal.open(url)


def test_a_server_that_is_not_there_is_a_setting_to_mend_and_the_password_is_not_shown(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadConfig, match="cannot reach") as caught:
        Journal.open(f"postgresql://kw:secret@/base?host={tmp_path}")
    assert "secret" not in str(caught.value)


def test_a_full_server_is_a_full_disk() -> None:
    # Reported by the server as SQLSTATE 53100; filling its disk for real would need a file system of its own.
    import psycopg.errors

    error = OperationalError("INSERT", {}, psycopg.errors.DiskFull("could not extend file"))
    assert isinstance(PostgresServer(make_url("postgresql://h/b")).explain(error, writing=True), DiskFull)

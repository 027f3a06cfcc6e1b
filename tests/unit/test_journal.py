"""The journal keeps what it acknowledged, finds what was changed, and says what is wrong in our own words."""

import itertools
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from sqlalchemy.engine import Connection

from kernelwright.core.candidate import Author, Candidate
from kernelwright.core.case import Case, Compute, DType, TensorSpec
from kernelwright.core.device import Device, DeviceKind
from kernelwright.core.errors import (
    BadConfig,
    DiskFull,
    JournalBusy,
    JournalCorrupt,
    JournalTooNew,
    KernelwrightError,
    NotFound,
    NotWritable,
    UnknownName,
)
from kernelwright.core.events import (
    GENESIS,
    SCHEMA,
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    Noted,
    ProblemFound,
    RunEnded,
    RunStarted,
    chain_hash,
)
from kernelwright.core.problem import Problem
from kernelwright.core.tree import fold
from kernelwright.core.verdict import (
    Comparison,
    Decision,
    Evaluation,
    Outcome,
    Profile,
    Stage,
    StageResult,
    Status,
)
from kernelwright.store import chain
from kernelwright.store.chain import Damaged, Fault, Sound, StoredEvent, StoredRun
from kernelwright.store.journal import Journal, JournalWriter
from kernelwright.store.sqlite import SqliteFile
from kernelwright.store.summary import OPEN_COMPARISONS, Summary
from kernelwright.store.tables import RUNS

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
RATIOS = (1.25, 1.6)
NOBODY = 65534


def noon() -> datetime:
    return NOON


def a_problem() -> Problem:
    tensor = TensorSpec(name="x", shape=(4, 64), dtype=DType.FP32)
    axes = {"rows": 4, "cols": 64}
    case = Case(
        op="rmsnorm",
        axes=axes,
        dtype=DType.FP32,
        compute=Compute.STRICT_FP32,
        inputs=(tensor,),
        outputs=(tensor,),
    )
    device = Device(kind=DeviceKind.CPU, name="a CPU", arch="x86_64", units=2, memory_bytes=1 << 30)
    return Problem(op="rmsnorm", cases=(case,), device=device, share=0.4)


def judged(problem: Problem, number: int, best: Candidate | None) -> tuple[Candidate, list[Body]]:
    """Return a candidate that passes everything, and its events; compared with the best if there is one."""
    candidate = Candidate(op="rmsnorm", backend="cpp", source=f"// {number} é\n", author=Author(name="seed"))
    common: dict[str, Any] = {"problem_hash": problem.hash, "device_hash": problem.device.hash}
    stages = tuple(StageResult(stage=stage, passed=True, seconds=0.1) for stage in Stage)
    evaluation = Evaluation(
        candidate_hash=candidate.hash, profile=Profile.KEEP, status=Status.ACCEPTED, stages=stages, **common
    )
    bodies: list[Body] = [
        CandidateProposed(problem_hash=problem.hash, candidate=candidate),
        Evaluated(evaluation=evaluation),
    ]
    comparison = None
    if best is not None:
        ratio = RATIOS[number % 2]
        comparison = Comparison(
            incumbent_hash=best.hash,
            challenger_hash=candidate.hash,
            outcome=Outcome.FASTER,
            ratio=ratio,
            ci_low=ratio - 0.1,
            ci_high=ratio + 0.1,
            e_faster=2000.0,
            e_not_faster=0.1,
            pairs=1,
            log_ratios=(0.2,),
            **common,
        )
        bodies.append(Compared(comparison=comparison))
    decision = Decision(
        problem_hash=problem.hash,
        candidate_hash=candidate.hash,
        kept=True,
        reason="faster",
        evaluation_hash=evaluation.hash,
        comparison_hash=comparison.hash if comparison else None,
    )
    return candidate, [*bodies, Decided(decision=decision)]


def a_run(candidates: int = 3) -> list[Body]:
    """Return the events of a small run: each candidate is kept in the place of the one before."""
    problem, best = a_problem(), None
    bodies: list[Body] = [
        RunStarted(config={"model": "model.py:build"}, versions={"python": "3.11"}, device=problem.device),
        ProblemFound(problem=problem),
    ]
    for number in range(candidates):
        best, events = judged(problem, number, best)
        bodies += events
    return [*bodies, RunEnded(reason="budget")]


RUN = a_run()
LAST = len(RUN) - 1


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run."""
    with Journal.create(tmp_path / "run", "r1", noon) as journal:
        journal.append(RUN)
    return tmp_path / "run"


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder others may enter: pytest's own is closed to them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def in_a_child(act: Callable[[], object], *, unprivileged: bool = False) -> object:
    """Return what a function returns in a forked process, as nobody if permission bits must bind even for root."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        answer: object = "the child raised"
        try:
            if unprivileged and os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            answer = act()
        finally:
            os.write(send, json.dumps(answer).encode())
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    return answer


def error_of(act: Callable[[], object]) -> str:
    """Return the name of the error an action ends with."""
    try:
        act()
    except KernelwrightError as error:
        return type(error).__name__
    return "none"


def edit(folder: Path, *statements: str) -> None:
    """Change a journal behind its back."""
    with sqlite3.connect(folder / "journal.db") as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for statement in statements:
            connection.execute(statement)
    connection.close()


# Appending and reading


def test_what_was_appended_is_read_back_with_numbers_times_and_an_unbroken_chain(run_folder: Path) -> None:
    journal = Journal.open(run_folder)
    events = list(journal.events())
    assert [event.body for event in events] == RUN
    assert [event.seq for event in events] == list(range(len(RUN)))
    assert {event.at for event in events} == {NOON}
    assert journal.verify() == Sound(events=len(RUN), head=events[-1].hash)
    assert list(journal.bodies(start=LAST - 1)) == RUN[-2:]
    assert journal.tree() == fold(RUN)


@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, LAST)))
def test_every_way_of_cutting_a_run_into_appends_gives_the_same_chain(cuts: set[int]) -> None:
    borders = [0, *sorted(cuts), len(RUN)]
    with tempfile.TemporaryDirectory() as name:
        with Journal.create(Path(name), "r1", noon) as journal:
            numbers = [journal.append(RUN[a:b]) for a, b in itertools.pairwise(borders)]
        read = Journal.open(Path(name))
        assert [seq for batch in numbers for seq in batch] == list(range(len(RUN)))
        assert read.verify() == Sound(events=len(RUN), head=linked(RUN)[-1].hash)
        assert read.summary() == summed(RUN)
        assert read.tree() == fold(RUN)


def test_an_interrupted_append_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    times: Iterator[datetime | KeyboardInterrupt] = iter([NOON, NOON, KeyboardInterrupt(), NOON])

    def clock() -> datetime:
        moment = next(times)
        if isinstance(moment, KeyboardInterrupt):
            raise moment
        return moment

    with Journal.create(tmp_path, "r1", clock) as journal:
        assert journal.append([Noted(text="one")]) == [0]
        with pytest.raises(KeyboardInterrupt):
            journal.append([Noted(text="two"), Noted(text="three")])
        assert journal.append([Noted(text="four")]) == [1]
        assert journal.append([]) == []
    assert list(Journal.open(tmp_path).bodies()) == [Noted(text="one"), Noted(text="four")]


def test_readers_see_whole_appends_while_the_writer_writes(tmp_path: Path) -> None:
    with Journal.create(tmp_path, "r1", noon) as writer:
        reader = Journal.open(tmp_path)
        assert reader.summary().events == 0
        writer.append(RUN[:5])
        walk = reader.bodies()
        first = next(walk)
        writer.append(RUN[5:])
        assert [first, *walk] == RUN[:5], "a walk sees the state it began with"
        assert reader.verify() == writer.verify() == Sound(events=len(RUN), head=linked(RUN)[-1].hash)


def test_a_second_writer_is_refused_until_the_first_has_closed(tmp_path: Path) -> None:
    def second() -> str:
        return error_of(lambda: Journal.open_for_writing(tmp_path).close())

    with Journal.create(tmp_path, "r1", noon):
        assert second() == "JournalBusy"
        assert in_a_child(second) == "JournalBusy"
        with pytest.raises(JournalBusy, match="reading needs no lock"):
            Journal.create(tmp_path, "r2")
    assert in_a_child(second) == "none"
    assert second() == "none"


def test_a_forked_child_does_not_keep_the_lock_of_a_closed_journal(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, "r1", noon)
    hold, go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.read(hold, 1)
        os._exit(0)
    journal.close()
    with Journal.open_for_writing(tmp_path) as again:
        assert again.run_id == "r1"
    os.close(go)
    os.close(hold)
    os.waitpid(child, 0)


def test_a_new_run_is_refused_where_there_is_one(run_folder: Path) -> None:
    with pytest.raises(NotWritable, match="already holds the journal of run r1"):
        Journal.create(run_folder, "r2")
    assert Journal.open(run_folder).run_id == "r1"


def test_a_journal_whose_creation_was_cut_short_is_created_again(tmp_path: Path) -> None:
    (tmp_path / "journal.db").touch()
    with Journal.create(tmp_path, "r1", noon) as journal:
        assert journal.append(RUN) == list(range(len(RUN)))


def test_a_journal_is_not_there_before_its_first_row(tmp_path: Path) -> None:
    def looked_for(connection: Connection) -> None:
        assert connection.execute(select(RUNS.c.run_id)).all() == []
        with pytest.raises(NotFound):
            Journal.open(tmp_path)
        raise InterruptedError

    file = SqliteFile(tmp_path / "journal.db")
    for _ in range(2):  # what the first left does not hinder the second
        with pytest.raises(InterruptedError), file.writing("r1", first=looked_for):
            pytest.fail("it was opened without its first row")
    with Journal.create(tmp_path, "r1", noon):
        assert Journal.open(tmp_path).run_id == "r1"


# The folder: moved, copied, read-only, full


def test_after_closing_the_database_file_alone_is_the_whole_journal(run_folder: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in run_folder.iterdir()) == ["journal.db", "writer.lock"]
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(run_folder / "journal.db", tmp_path / "elsewhere")
    assert Journal.open(tmp_path / "elsewhere").tree() == fold(RUN)
    run_folder.rename(tmp_path / "moved ?#%20")
    with Journal.open_for_writing(tmp_path / "moved ?#%20") as journal:
        assert journal.append([Noted(text="moved")]) == [len(RUN)]


def test_a_copy_of_a_folder_that_is_being_written_holds_every_acknowledged_event(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "run", "r1", noon) as journal:
        journal.append(RUN)
        shutil.copytree(tmp_path / "run", tmp_path / "copy", ignore=shutil.ignore_patterns("*-shm"))
    assert Journal.open(tmp_path / "copy").verify().verdict == "sound"
    assert Journal.open(tmp_path / "copy").summary() == summed(RUN)


def test_closing_beside_a_reader_in_the_middle_of_a_walk_loses_nothing(tmp_path: Path) -> None:
    with Journal.create(tmp_path, "r1", noon) as journal:
        journal.append(RUN)
        walk = Journal.open(tmp_path).bodies()
        next(walk)
        journal.append([Noted(text="late")])
    assert len(list(walk)) == LAST
    assert Journal.open(tmp_path).summary().events == len(RUN) + 1


@pytest.mark.parametrize("left_behind", ["nothing", "wal and index", "wal alone", "empty wal"])
def test_a_journal_in_a_read_only_folder_is_read_to_its_last_event(
    public_folder: Path, left_behind: str
) -> None:
    run = public_folder / "run"
    journal = Journal.create(public_folder / "source", "r1", noon)
    journal.append(RUN[:5])
    if left_behind in ("nothing", "empty wal"):
        journal.append(RUN[5:])
        journal.close()
        journal = Journal.open_for_writing(public_folder / "source")  # an untouched WAL is empty
        kept = () if left_behind == "empty wal" else ("*-shm", "*-wal")
        shutil.copytree(public_folder / "source", run, ignore=shutil.ignore_patterns("*-shm", *kept))
    else:
        journal.append(RUN[5:])
        ignored = ("*-shm",) if left_behind == "wal alone" else ()
        shutil.copytree(public_folder / "source", run, ignore=shutil.ignore_patterns(*ignored))
    journal.close()
    before = sorted(run.iterdir())
    run.chmod(0o555)

    def look() -> object:
        assert not os.access(run, os.W_OK)
        reader = Journal.open(run)
        return [reader.verify().verdict, reader.summary().events, reader.tree().events]

    assert in_a_child(look, unprivileged=True) == ["sound", len(RUN), len(RUN)]
    assert sorted(run.iterdir()) == before
    run.chmod(0o755)


def test_writing_to_a_read_only_folder_is_refused_and_changes_nothing(public_folder: Path) -> None:
    run = public_folder / "run"
    with Journal.create(run, "r1", noon) as journal:
        journal.append(RUN)
    before = (run / "journal.db").read_bytes()
    run.chmod(0o555)
    public_folder.chmod(0o555)

    def refused() -> object:
        attempts = (
            lambda: Journal.open_for_writing(run),
            lambda: Journal.create(public_folder / "new", "r2"),
            lambda: Journal.create(run, "r2"),
        )
        return [error_of(attempt) for attempt in attempts]

    assert in_a_child(refused, unprivileged=True) == ["NotWritable"] * 3
    assert (run / "journal.db").read_bytes() == before
    run.chmod(0o755)


@pytest.mark.parametrize("room_bytes", [0, 1000, 20_000])
def test_a_full_disk_fails_one_append_and_loses_nothing(tmp_path: Path, room_bytes: int) -> None:
    def fill() -> object:
        journal = Journal.create(tmp_path, "r1", noon)
        journal.append(RUN)
        used = (tmp_path / "journal.db-wal").stat().st_size
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (used + room_bytes, hard))
        big: list[Body] = [Noted(text="x" * 5000) for _ in range(20)]
        failed = error_of(lambda: journal.append(big))
        sound_when_full = journal.verify().verdict, journal.summary().events
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        numbers = journal.append(big)
        journal.close()
        return [failed, *sound_when_full, numbers[0]]

    assert in_a_child(fill) == ["DiskFull", "sound", len(RUN), len(RUN)]
    assert Journal.open(tmp_path).verify().verdict == "sound"


def test_a_database_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    with Journal.create(tmp_path, "r1", noon) as journal:
        journal.append(RUN)
        database = driver_of(journal)
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DiskFull, match="acknowledged so far is safe"):
            journal.append([Noted(text="x" * 50_000)])
        database.execute("PRAGMA max_page_count = 1000000")
        assert journal.append([Noted(text="x" * 50_000)]) == [len(RUN)]
    assert Journal.open(tmp_path).verify().verdict == "sound"


def driver_of(journal: JournalWriter) -> sqlite3.Connection:
    database = journal._lease.connection.connection.driver_connection
    assert isinstance(database, sqlite3.Connection)
    return database


def test_the_writer_syncs_every_commit_in_wal_mode(tmp_path: Path) -> None:
    with Journal.create(tmp_path, "r1") as journal:
        pragmas = {name: driver_of(journal).execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS}
    assert pragmas == PRAGMAS


PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}


# What is not a journal, or not ours to read


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"this is a note to myself, not a database" * 100, "not a database"),
        (b"", "no such table"),
        (None, "unable to open|I/O error"),
    ],
)
def test_a_file_that_is_no_journal_is_called_damaged(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "journal.db"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(JournalCorrupt, match=said):
        Journal.open(tmp_path)


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_file_is_called_damaged(tmp_path: Path, kept: float) -> None:
    with Journal.create(tmp_path, "r1") as journal:
        journal.append([Noted(text="x" * 3000) for _ in range(50)])
    file = tmp_path / "journal.db"
    os.truncate(file, int(file.stat().st_size * kept))
    with pytest.raises(JournalCorrupt, match="malformed"):
        Journal.open(tmp_path).verify()


def test_a_newer_journal_is_refused_for_reading_and_writing(run_folder: Path) -> None:
    edit(run_folder, f"UPDATE runs SET schema_version = {SCHEMA + 1}")
    for opening in (Journal.open, Journal.open_for_writing):
        with pytest.raises(
            JournalTooNew, match=f"has schema {SCHEMA + 1}, this version reads up to {SCHEMA}"
        ):
            opening(run_folder)


def test_a_newer_event_is_refused_when_it_is_reached(run_folder: Path) -> None:
    edit(run_folder, f"UPDATE events SET schema_version = {SCHEMA + 1} WHERE seq = 3")
    walk = Journal.open(run_folder).bodies()
    assert [next(walk) for _ in range(3)] == RUN[:3]
    with pytest.raises(JournalTooNew):
        next(walk)


def test_a_journal_that_is_not_there_is_not_found_and_not_made(tmp_path: Path) -> None:
    for opening in (Journal.open, Journal.open_for_writing):
        with pytest.raises(NotFound, match="journal_url"):
            opening(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_run_is_answered_with_the_known_one(run_folder: Path) -> None:
    with pytest.raises(UnknownName, match=r"Unknown run 'r2'.*Known: r1\."):
        Journal.open(run_folder, "r2")


def test_a_sqlite_url_names_the_file(run_folder: Path) -> None:
    assert Journal.open(f"sqlite:///{run_folder / 'journal.db'}").summary() == summed(RUN)
    assert Journal.open(str(run_folder)).summary() == summed(RUN)


@pytest.mark.parametrize("url", ["mysql://host/base", "sqlite://", "://", "nonsense://x:y:z"])
def test_a_url_that_cannot_keep_a_journal_is_a_mistake_in_the_configuration(url: str) -> None:
    with pytest.raises(BadConfig, match="journal_url: "):
        Journal.open(url)


def test_an_event_about_a_candidate_never_proposed_makes_no_tree(tmp_path: Path) -> None:
    with Journal.create(tmp_path, "r1") as journal:
        journal.append([RUN[3]])
        with pytest.raises(JournalCorrupt, match="never proposed"):
            journal.tree()


# Tampering


def linked(bodies: list[Body]) -> list[StoredEvent]:
    """Return the stored form of events, chained."""
    stored: list[StoredEvent] = []
    for seq, body in enumerate(bodies):
        stored.append(chain.link(stored[-1].hash if stored else GENESIS, seq, NOON.isoformat(), body))
    return stored


def summed(bodies: list[Body]) -> Summary:
    """Return the summary of events."""
    summary = Summary(run_id="r1", created_at=NOON)
    for body in bodies:
        summary = summary.after(body, NOON)
    return summary


def row_of(events: list[StoredEvent], summary: Summary) -> StoredRun:
    head, now = events[-1].hash if events else GENESIS, NOON.isoformat()
    return StoredRun("r1", SCHEMA, len(events), head, summary.model_dump_json(), now, now)


def test_a_journal_nobody_touched_is_sound() -> None:
    for length in range(len(RUN)):
        events = linked(RUN[:length])
        row = row_of(events, summed(RUN[:length]))
        assert chain.verify(row, events.copy) == Sound(events=length, head=row.head)


FIELDS: dict[str, Any] = {
    "at": "2026-11-15T12:00:00.000001+00:00",
    "schema_version": SCHEMA + 1,
    "kind": "screened",
    "body": '{"kind":"noted","text":"forged"}',
    "hash": "f" * 64,
}


@given(seq=st.integers(0, LAST), field=st.sampled_from(sorted(FIELDS)))
def test_any_changed_field_is_found_and_its_event_named(seq: int, field: str) -> None:
    events = linked(RUN)
    row = row_of(events, summed(RUN))
    events[seq] = events[seq]._replace(**{field: FIELDS[field]})
    found = chain.verify(row, lambda: events)
    assert isinstance(found, Damaged)
    assert (found.fault, found.seq) == (Fault.CHANGED, seq)


@given(seq=st.integers(0, LAST), place=st.integers(0, 10_000), flipped=st.integers(1, 127))
def test_any_changed_character_of_a_body_is_found(seq: int, place: int, flipped: int) -> None:
    events = linked(RUN)
    row = row_of(events, summed(RUN))
    text = events[seq].body
    place %= len(text)
    events[seq] = events[seq]._replace(
        body=text[:place] + chr(ord(text[place]) ^ flipped) + text[place + 1 :]
    )
    found = chain.verify(row, lambda: events)
    assert isinstance(found, Damaged)
    assert (found.fault, found.seq) == (Fault.CHANGED, seq)


@given(seq=st.integers(0, LAST), run=st.integers(1, 4))
def test_any_missing_stretch_is_found_and_its_first_event_named(seq: int, run: int) -> None:
    events = linked(RUN)
    row = row_of(events, summed(RUN))
    left = events[:seq] + events[seq + run :]
    found = chain.verify(row, lambda: left)
    assert isinstance(found, Damaged)
    fault = Fault.MISSING if seq + run <= LAST else Fault.MISSING_TAIL
    assert (found.fault, found.seq) == (fault, seq)


@given(
    pair=st.sets(st.integers(0, LAST), min_size=2, max_size=2),
    how=st.sampled_from(["row", "content", "body"]),
)
def test_any_two_events_that_changed_places_are_found_and_the_first_named(pair: set[int], how: str) -> None:
    events = linked(RUN)
    row = row_of(events, summed(RUN))
    early, late = sorted(pair)
    moved = {"row": ("at", "kind", "body", "hash"), "content": ("at", "kind", "body"), "body": ("body",)}[how]
    first, second = events[early], events[late]
    events[early] = first._replace(**{name: getattr(second, name) for name in moved})
    events[late] = second._replace(**{name: getattr(first, name) for name in moved})
    found = chain.verify(row, lambda: events)
    assert found == Damaged(
        fault=Fault.REORDERED, seq=early, problem=f"its content was found at event {late}"
    )


def test_an_event_nobody_counted_is_extra() -> None:
    events = linked(RUN)
    row = row_of(events[:-1], summed(RUN[:-1]))
    found = chain.verify(row, lambda: events)
    assert isinstance(found, Damaged)
    assert (found.fault, found.seq) == (Fault.EXTRA, LAST)
    negative = [events[0]._replace(seq=-1), *events[:-1]]
    found = chain.verify(row, lambda: negative)
    assert isinstance(found, Damaged)
    assert (found.fault, found.seq) == (Fault.EXTRA, -1)


@pytest.mark.parametrize(
    "change",
    [
        {"events": len(RUN) - 1},
        {"events": len(RUN) + 1},
        {"events": "many"},
        {"head": "f" * 64},
        {"schema_version": SCHEMA - 1},
        {"run_id": "r2"},
        {"summary": summed(RUN[:-1]).model_dump_json()},
        {"summary": "{}"},
        {"summary": None},
        {"created_at": (NOON - timedelta(days=1)).isoformat()},
        {"created_at": "long ago"},
        {"updated_at": (NOON + timedelta(days=1)).isoformat()},
        {"updated_at": None},
    ],
)
def test_a_changed_row_is_found_though_every_event_is_sound(change: dict[str, Any]) -> None:
    events = linked(RUN)
    found = chain.verify(row_of(events, summed(RUN))._replace(**change), lambda: events)
    assert isinstance(found, Damaged)
    assert (found.fault, found.seq) == (Fault.WRONG_ROW, None)


def test_a_body_this_version_does_not_know_is_unreadable_not_changed() -> None:
    at, text = NOON.isoformat(), '{"kind":"teleported"}'
    stranger = StoredEvent(0, at, SCHEMA, "teleported", text, chain_hash(GENESIS, 0, at, SCHEMA, text))
    found = chain.verify(row_of([stranger], summed([])), lambda: [stranger])
    assert isinstance(found, Damaged)
    assert (found.fault, found.seq) == (Fault.UNREADABLE, 0)


SWAP = "UPDATE events SET seq = CASE seq WHEN 2 THEN 1005 WHEN 5 THEN 1002 END WHERE seq IN (2, 5)"
EDITS = {
    "UPDATE events SET body = replace(body, '3.11', '3.12') WHERE seq = 0": (Fault.CHANGED, 0),
    "UPDATE events SET hash = upper(hash) WHERE seq = 4": (Fault.CHANGED, 4),
    "UPDATE events SET body = CAST(x'7bff7d' AS TEXT) WHERE seq = 4": (Fault.CHANGED, 4),
    "UPDATE events SET body = CAST(body AS BLOB) WHERE seq = 4": (Fault.CHANGED, 4),
    "UPDATE events SET schema_version = 'one' WHERE seq = 4": (Fault.CHANGED, 4),
    "DELETE FROM events WHERE seq = 6": (Fault.MISSING, 6),
    "UPDATE events SET run_id = 'r2' WHERE seq = 6": (Fault.MISSING, 6),
    f"DELETE FROM events WHERE seq = {LAST}": (Fault.MISSING_TAIL, LAST),
    "DELETE FROM events": (Fault.MISSING_TAIL, 0),
    f"{SWAP}; UPDATE events SET seq = seq - 1000 WHERE seq > 1000": (Fault.REORDERED, 2),
    f"INSERT INTO events SELECT run_id, {LAST + 1}, at, schema_version, kind, body, hash FROM events "
    "WHERE seq = 3": (Fault.EXTRA, LAST + 1),
    "INSERT INTO events SELECT run_id, 'x', at, schema_version, kind, body, hash FROM events WHERE seq = 3": (
        Fault.EXTRA,
        LAST + 1,
    ),
    "UPDATE runs SET head = 'f'": (Fault.WRONG_ROW, None),
}


@pytest.mark.parametrize("statements", EDITS)
def test_an_edit_of_the_database_is_found_and_named(run_folder: Path, statements: str) -> None:
    edit(run_folder, *statements.split("; "))
    found = Journal.open(run_folder).verify()
    assert isinstance(found, Damaged)
    assert (found.fault, found.seq) == EDITS[statements]


@pytest.mark.parametrize(
    "statement", ["DELETE FROM runs", "UPDATE runs SET schema_version = 'new'", "DROP TABLE runs"]
)
def test_a_journal_without_a_usable_row_is_called_damaged(run_folder: Path, statement: str) -> None:
    edit(run_folder, statement)
    with pytest.raises(JournalCorrupt):
        Journal.open(run_folder)


@pytest.mark.parametrize(
    "statement",
    [
        f"DELETE FROM events WHERE seq = {LAST}",
        f"UPDATE events SET body = '{{}}' WHERE seq = {LAST}",
        "UPDATE runs SET head = 'f'",
        "UPDATE runs SET events = 3",
    ],
)
def test_nobody_appends_to_a_journal_whose_head_is_wrong(run_folder: Path, statement: str) -> None:
    edit(run_folder, statement)
    with pytest.raises(JournalCorrupt, match="the run's row"):
        Journal.open_for_writing(run_folder)


@pytest.mark.parametrize("change", ["at = 'noon'", "schema_version = 'one'", "body = x'00'"])
def test_an_event_with_a_senseless_field_ends_the_walk_as_damaged(run_folder: Path, change: str) -> None:
    edit(run_folder, f"UPDATE events SET {change} WHERE seq = 3")
    walk = Journal.open(run_folder).events()
    assert [next(walk).body for _ in range(3)] == RUN[:3]
    with pytest.raises(JournalCorrupt, match="event 3"):
        next(walk)


def test_a_gap_or_an_unreadable_body_never_makes_a_tree(run_folder: Path) -> None:
    edit(run_folder, "UPDATE events SET body = '{}' WHERE seq = 7")
    with pytest.raises(JournalCorrupt, match="event 7 cannot be read"):
        Journal.open(run_folder).tree()
    edit(run_folder, "DELETE FROM events WHERE seq = 4")
    with pytest.raises(JournalCorrupt, match="event 4 is missing"):
        Journal.open(run_folder).tree()


# The summary


def test_the_summary_agrees_with_the_tree() -> None:
    summary, tree, problem = summed(RUN), fold(RUN), a_problem()
    assert (summary.events, summary.candidates) == (tree.events, len(tree.nodes)) == (len(RUN), 3)
    assert (summary.kept, summary.reverted, summary.ended) == (3, 0, "budget")
    assert (summary.model, summary.device) == ("model.py:build", "a CPU")
    assert summary.statuses == {"accepted": 3}
    progress = summary.problems[problem.hash]
    assert progress.best is not None
    assert progress.best.candidate_hash == tree.best[problem.hash]
    assert progress.best.ratio == pytest.approx(RATIOS[0] * RATIOS[1])
    assert progress.cases == ("rmsnorm 4x64 fp32",)
    assert summary.open_comparisons == {}


def test_the_summary_is_answered_from_the_row_alone(run_folder: Path) -> None:
    edit(run_folder, "DROP TABLE events")
    assert Journal.open(run_folder).summary() == summed(RUN)


def test_a_reverted_candidate_leaves_the_best_where_it_was() -> None:
    problem = a_problem()
    best, kept = judged(problem, 0, None)
    _, tried = judged(problem, 1, best)
    verdict = tried[-1]
    assert isinstance(verdict, Decided)
    reverted = verdict.decision.model_copy(update={"kept": False})
    progress = summed([ProblemFound(problem=problem), *kept, *tried[:-1], Decided(decision=reverted)])
    assert (progress.kept, progress.reverted) == (1, 1)
    best_now = progress.problems[problem.hash].best
    assert best_now is not None
    assert (best_now.candidate_hash, best_now.ratio) == (best.hash, 1.0)


def test_a_reverted_title_holder_gives_the_title_back() -> None:
    problem = a_problem()
    first, kept = judged(problem, 0, None)
    second, tried = judged(problem, 1, first)
    verdict = tried[-1]
    assert isinstance(verdict, Decided)
    reverted = Decided(decision=verdict.decision.model_copy(update={"kept": False}))
    story = [ProblemFound(problem=problem), *kept, *tried]
    for bodies, holder in ((story, second), ([*story, verdict], second), ([*story, reverted], first)):
        best = summed(bodies).problems[problem.hash].best
        assert best is not None
        assert best.candidate_hash == fold(bodies).best[problem.hash] == holder.hash


def test_a_run_that_compares_and_never_decides_keeps_a_small_summary() -> None:
    problem = a_problem()
    first, events = judged(problem, 0, None)
    for number in range(1, OPEN_COMPARISONS + 10):
        events += judged(problem, number, first)[1][:-1]
    assert len(summed(events).open_comparisons) == OPEN_COMPARISONS


def test_a_resumed_run_has_not_ended() -> None:
    assert summed([*RUN, RUN[0]]).ended is None


def test_looking_for_a_run_does_not_import_sqlalchemy() -> None:
    code = (
        "import sys, kernelwright.store.locate; print('sqlalchemy' in sys.modules or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

"""The shelf of lessons: what all runs of a home folder have learnt, and their winners, in one SQLite file.

Any number of runs may read and write it at once: every write is one short transaction that waits for the others, and
adding what is there already changes nothing, so a run that is taken up again may add everything again. Words are
searched with SQLite's own FTS5 index, ranked by BM25; nothing leaves the machine.

1. A lesson is known by its scope and the words of its claim (`Lesson.key`). The first one stays as it was learnt.
2. Every run that shows it again, or shows the contrary, adds a sighting. Standing follows from the sightings alone
   (`KeptLesson.standing`): two places promote, as many against as for demote.
3. A winner is kept with its source and its table of values, for problems of the same op, language and architecture.
"""

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kernelwright.core.errors import ShelfUnusable
from kernelwright.core.frozen import Frozen, canonical_json, digest
from kernelwright.core.lesson import Lesson, Shape, apart
from kernelwright.core.shelf import EarlierWinner, KeptLesson, Sighting, Standing
from kernelwright.core.verdict import JUDGE_VERSION
from kernelwright.store.disk import disk_errors, make_folder
from kernelwright.store.fulltext import match_any

Row = TypeVar("Row", bound=Frozen)
SHELF_FILE = "lessons.db"
SHELF_SCHEMA = 1
"""Version of the tables and of the exported lines; a newer one is refused."""
BUSY_S = 30.0
POLL_S = 0.005
"""How long a write waits for the others."""
NEAR = 6.0
"""Winners farther away than this are not offered: a factor of e⁶ = 400 in all extents together. In recorded landscapes
winners 5.5 apart (256x512 and 16x8192) still reach 85 to 100 % of the other size's best."""
TABLES = """
CREATE TABLE IF NOT EXISTS lessons (
    key TEXT PRIMARY KEY, op TEXT, backend TEXT, arch TEXT, bottleneck TEXT, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sightings (
    key TEXT NOT NULL REFERENCES lessons, id TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (key, id));
CREATE TABLE IF NOT EXISTS winners (
    key TEXT PRIMARY KEY, op TEXT NOT NULL, backend TEXT NOT NULL, arch TEXT NOT NULL, body TEXT NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(key UNINDEXED, claim, scope, tokenize = 'porter unicode61');
"""


def shelf_file(home: Path) -> Path:
    """Return where the shelf of a home folder is."""
    return home / SHELF_FILE


@dataclass(frozen=True)
class Scope:
    """Which lessons are asked for; None asks nothing."""

    op: str | None = None
    backend: str | None = None
    arch: str | None = None
    bottleneck: str | None = None

    def admits(self, lesson: Lesson) -> bool:
        """Tell whether a lesson says something about what is asked for."""
        pairs = (
            (self.op, lesson.op),
            (self.backend, lesson.backend),
            (self.arch, lesson.arch),
            (self.bottleneck, lesson.bottleneck),
        )
        return all(wanted is None or own in (None, wanted) for wanted, own in pairs)


@dataclass(frozen=True)
class Findings:
    """What a run adds."""

    learnt: Sequence[tuple[Lesson, Sighting]] = ()
    """Lessons, each with the result that taught it."""
    seen: Sequence[tuple[str, Sighting]] = ()
    """What else was seen of lessons, by their key, for and against them."""
    winners: Sequence[EarlierWinner] = ()


@dataclass(frozen=True)
class Shelf:
    """The shelf of a home folder; a file that is not there is an empty shelf."""

    path: Path

    def add(self, found: Findings, *, is_foreign: bool = False) -> None:
        """Add what a run has found; what is there already stays as it is, but for the run's own earlier winner.

        What others found, out of a file, replaces nothing at all: anybody can write a run's name into a line. A
        sighting of a lesson that nobody has learnt is dropped: there is nothing to confirm or to contradict.
        """
        with self._writing() as shelf:
            for lesson, sighting in found.learnt:
                _add_lesson(shelf, lesson)
                _add_sighting(shelf, lesson.key, sighting)
            for key, sighting in found.seen:
                if shelf.execute("SELECT 1 FROM lessons WHERE key = ?", (key,)).fetchone():
                    _add_sighting(shelf, key, sighting)
            for winner in found.winners:
                _add_winner(shelf, winner, is_kept=is_foreign)

    def lessons(self, scope: Scope | None = None, words: str = "") -> list[KeptLesson]:
        """Return the lessons asked for: best standing first, or best match first where words are given."""
        wanted = scope or Scope()
        with self._reading() as shelf:
            if shelf is None:
                return []
            found = [one for key, body in _rows(shelf, words) for one in _kept(shelf, key, body)]
        admitted = [one for one in found if wanted.admits(one.lesson)]
        return admitted if words else sorted(admitted, key=lambda one: one.rank)

    def trusted(self, scope: Scope, most: int) -> list[Lesson]:
        """Return the lessons a run is given: the demoted ones left out."""
        kept = [one for one in self.lessons(scope) if one.standing is not Standing.DEMOTED]
        return [one.lesson for one in kept[:most]]

    def winners(self, scope: Scope | None = None) -> list[EarlierWinner]:
        """Return the winners of an op, language and architecture, by op and run."""
        wanted = scope or Scope()
        with self._reading() as shelf:
            rows = [] if shelf is None else shelf.execute("SELECT body FROM winners").fetchall()
        found = [one for (body,) in rows for one in _read(EarlierWinner, body)]
        asked = [
            one
            for one in found
            if wanted.op in (None, one.op)
            and wanted.backend in (None, one.backend)
            and wanted.arch in (None, one.arch)
        ]
        return sorted(asked, key=lambda one: (one.op, one.run_id, one.key))

    def near(
        self, scope: Scope, shapes: Sequence[Shape], reference: str | None, most: int
    ) -> list[EarlierWinner]:
        """Return the winners of the most similar problems, nearest sizes first, each source once.

        At the same distance those judged by the present rules come first; by how much others won says nothing beside.
        """
        found = [one for one in self.winners(scope) if one.reference == reference]
        placed = sorted(
            found,
            key=lambda one: (
                apart(shapes, one.shapes),
                one.judge_version != JUDGE_VERSION,
                one.judge_version,
                -one.ratio,
                one.key,
            ),
        )
        chosen: dict[str, EarlierWinner] = {}
        for one in placed:
            if apart(shapes, one.shapes) <= NEAR and len(chosen) < most:
                chosen.setdefault(digest(one.source), one)
        return list(chosen.values())

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        if not self.path.exists():
            yield None
            return
        with self._opened("ro") as shelf:
            yield shelf

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with disk_errors(self.path):
            make_folder(self.path.parent)
        with self._opened("rwc") as shelf:
            _write_ahead(shelf)
            shelf.execute("BEGIN IMMEDIATE")
            for statement in TABLES.split(";\n"):
                shelf.execute(statement)
            shelf.execute(f"PRAGMA user_version = {SHELF_SCHEMA}")
            yield shelf
            shelf.execute("COMMIT")

    @contextmanager
    def _opened(self, mode: str) -> Iterator[sqlite3.Connection]:
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)) as shelf:
                (version,) = shelf.execute("PRAGMA user_version").fetchone()
                if version > SHELF_SCHEMA:
                    raise ShelfUnusable(self.path, f"its schema is {version}, known is {SHELF_SCHEMA}")
                yield shelf
        except sqlite3.Error as error:
            raise ShelfUnusable(self.path, str(error)) from error


def _write_ahead(shelf: sqlite3.Connection) -> None:
    """Have others read while somebody writes; SQLite does not wait for whoever changes this in a new file just now."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            shelf.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


def _add_lesson(shelf: sqlite3.Connection, lesson: Lesson) -> None:
    row = (lesson.key, lesson.op, lesson.backend, lesson.arch, lesson.bottleneck, lesson.model_dump_json())
    added = shelf.execute("INSERT INTO lessons VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
    if added.rowcount:
        shelf.execute("INSERT INTO words VALUES (?, ?, ?)", (lesson.key, lesson.claim, lesson.scope))


def _add_sighting(shelf: sqlite3.Connection, key: str, sighting: Sighting) -> None:
    about = [sighting.problem_hash, sighting.run_id, sighting.confirms, sighting.evaluations]
    row = (key, digest(canonical_json(about)), sighting.model_dump_json())
    shelf.execute("INSERT INTO sightings VALUES (?, ?, ?) ON CONFLICT DO NOTHING", row)


def _add_winner(shelf: sqlite3.Connection, winner: EarlierWinner, *, is_kept: bool) -> None:
    """Add a winner; one of the same place and run stays if it is to be kept, and is replaced if not."""
    row = (winner.key, winner.op, winner.backend, winner.arch, winner.model_dump_json())
    shelf.execute(f"INSERT OR {'IGNORE' if is_kept else 'REPLACE'} INTO winners VALUES (?, ?, ?, ?, ?)", row)


def _rows(shelf: sqlite3.Connection, words: str) -> list[tuple[str, str]]:
    """Return key and body of every lesson, or of those that hold a word, best match first."""
    if not words:
        return shelf.execute("SELECT key, body FROM lessons ORDER BY rowid").fetchall()
    asked = match_any(words)
    if not asked:
        return []
    return shelf.execute(
        "SELECT lessons.key, body FROM words JOIN lessons USING (key) WHERE words MATCH ? ORDER BY bm25(words), key",
        (asked,),
    ).fetchall()


def _kept(shelf: sqlite3.Connection, key: str, body: str) -> Iterator[KeptLesson]:
    rows = shelf.execute("SELECT body FROM sightings WHERE key = ? ORDER BY rowid", (key,)).fetchall()
    for lesson in _read(Lesson, body):
        yield KeptLesson(
            lesson=lesson, sightings=tuple(one for (text,) in rows for one in _read(Sighting, text))
        )


def _read(kind: type[Row], body: str) -> Iterator[Row]:
    """Yield what a row holds; one that this version would not take in is passed over, for it would end every run."""
    with suppress(ValidationError):
        yield kind.model_validate_json(body)

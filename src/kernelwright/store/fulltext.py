"""Words to what SQLite's FTS5 understands, and an index in memory ranked by BM25."""

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

COMMON = frozenset(
    re.findall(
        r"\w+",
        """a about again all already although am an and any are as at be because been but by can cannot could did do
    does done else every few for from get gets got had has have how i if in instead into is it its just know like me
    mine more most much my no nor not now of off on once only or other our out over own please should so some such
    than that many nothing the their them then there these they this those though through to too up us use used uses
    using very want was way we well were what when where which while who whole why will with would yet you your
    code fast faster gpu kernel kernels make makes reach reaches run runs slow slower time""",
    )
)
"""Words that say nothing about a subject, those of our trade included."""
SPOKEN: Mapping[str, str] = {
    "gemm": "matmul product",
    "gemv": "matmul thin product",
    "mma": "matrix product",
    "hbm": "memory bandwidth",
    "dram": "memory bandwidth",
    "smem": "shared memory",
    "lds": "shared memory",
    "sm": "multiprocessor block",
    "sms": "multiprocessor block",
    "stall": "latency",
    "stalls": "latency",
    "scoreboard": "memory latency",
    "ilp": "independent",
    "simd": "vector",
    "avx": "vector x86",
    "avx2": "vector x86",
    "avx512": "vector x86",
    "cpu": "x86",
    "threads": "thread",
    "h100": "hopper",
    "h200": "hopper",
    "gh200": "hopper",
    "a100": "ampere",
    "rtx4090": "ada",
    "l40s": "ada",
    "b200": "blackwell",
    "mi300": "cdna3",
    "mi300x": "cdna3",
    "chiplet": "die xcd",
    "chiplets": "die xcd",
    "nondeterministic": "fixed order",
    "atomicadd": "atomics",
    "gelu": "epilogue activation",
    "bias": "epilogue",
    "padding": "pad ignored",
    "malloc": "memory scratch allocate",
    "unaligned": "aligned odd",
    "misaligned": "aligned odd",
    "rope": "rotary",
    "rotary": "rope",
    "decode": "few rows",
    "loss": "cross entropy",
    "variance": "mean",
    "twice": "once pass",
    "autotune": "params",
    "tune": "params",
    "sass": "instruction",
    "openmp": "parallel",
    "consumed": "use",
    "evicts": "cache past",
    "writing": "store result",
    "huge": "large",
    "tiny": "short small",
}
"""What engineers say, and the words documents have for it."""


def words_of(text: str) -> list[str]:
    """Return the telling words of a question, each once, with what else they are called."""
    found: dict[str, None] = {}
    for word in re.findall(r"[a-z0-9_]+", text.lower()):
        parts = [word, *(part for part in word.split("_") if "_" in word)]
        for part in parts:
            # Numbers are rare and so would count most, though two questions about the same thing differ in them.
            if part in COMMON or part.isdigit() or len(part) < 2:
                continue
            found[part] = None
            # A negated adjective is about the same thing: `uncoalesced` asks for what is said of `coalesced`.
            if part.startswith("un") and len(part) > 6:
                found[part[2:]] = None
            for other in SPOKEN.get(part, "").split():
                found[other] = None
    return list(found)


def match_any(text: str) -> str:
    """Return the FTS5 expression that any telling word of a text satisfies; empty if there is none."""
    return " OR ".join(f'"{word}"' for word in words_of(text))


@dataclass(frozen=True)
class Entry:
    """One text of an index, by how much its parts say about it."""

    title: str
    """Name and title."""
    tags: str
    """What it is filed under."""
    lead: str
    """The part that says what to do."""
    body: str
    """All of it."""


WEIGHTS = (6.0, 2.0, 1.0, 0.3)
"""What a word counts in the title, the tags, the lead and the body."""


def best(entries: Sequence[Entry], question: str) -> list[int]:
    """Return the places of the entries that hold a word of a question, best match first."""
    asked = match_any(question)
    if not asked:
        return []
    with closing(sqlite3.connect(":memory:")) as index:
        index.execute(
            "CREATE VIRTUAL TABLE texts USING fts5(title, tags, lead, body, tokenize = 'porter unicode61')"
        )
        rows = [(number, one.title, one.tags, one.lead, one.body) for number, one in enumerate(entries, 1)]
        index.executemany("INSERT INTO texts (rowid, title, tags, lead, body) VALUES (?, ?, ?, ?, ?)", rows)
        weights = ", ".join(map(str, WEIGHTS))
        found = index.execute(
            f"SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY bm25(texts, {weights}), rowid", (asked,)
        )
        return [number - 1 for (number,) in found]

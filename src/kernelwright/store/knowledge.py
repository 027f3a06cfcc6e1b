"""The knowledge base: cards, hardware notes, lessons and the user's own documents behind one search, all offline.

It is hierarchical: *constraints* hold always, *guidance* says what to do, *hardware* says what a chip is. Retrieval
takes two steps: the diagnosis comes first, and the deep search is parameterised by it (`Question`): op, language,
architecture and bottleneck decide which texts may answer, words decide which of them answer best.

A user's folder holds Markdown or plain text. Its first folders may be called `constraints`, `guidance` and `hardware`;
what lies elsewhere is guidance. A file may begin with TOML between `+++` lines: `title`, and `ops`, `backends` or
`archs` as lists, where it holds for these alone. Long files are cut at their headings.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import kernelwright
from kernelwright.core.errors import BadInput, NotFound
from kernelwright.core.lesson import Lesson
from kernelwright.core.technique import Technique, Wanted, architecture_of
from kernelwright.store.disk import not_of_folder
from kernelwright.store.fulltext import Entry, best

SUFFIXES = (".md", ".txt")
FENCE = "+++"
MOST_BYTES = 1 << 20
"""Largest file that is read."""
MOST_FILES = 2000
"""Files of a folder that are read at most; more is a mistake in what was named."""
PASSAGE = 4000
"""Characters from which a text is cut at its headings."""
FACETS = ("ops", "backends", "archs")


class Level(StrEnum):
    """What kind of thing a text says."""

    CONSTRAINTS = "constraints"
    """What always holds: rules of a house or of a chip."""
    GUIDANCE = "guidance"
    """What to do, and when."""
    HARDWARE = "hardware"
    """What a chip is and offers."""


class Shelved(StrEnum):
    """Where a text comes from."""

    CARD = "card"
    """A technique of the playbook."""
    NOTE = "note"
    """A hardware note of this package."""
    LESSON = "lesson"
    """Something an earlier evaluation taught."""
    DOCUMENT = "document"
    """A file of the user's."""


@dataclass(frozen=True)
class Text:
    """One text that can be found."""

    name: str
    """What finds it again: a card's name, a note's section, a path."""
    title: str
    text: str
    """All of it, as a brief quotes it."""
    source: Shelved
    level: Level = Level.GUIDANCE
    lead: str = ""
    """The part that says what to do."""
    ops: tuple[str, ...] = ()
    """Kernel types it is for; none means every one. Likewise the next two."""
    backends: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    bottlenecks: tuple[str, ...] = ()
    card: Technique | None = None
    """The card itself, where it is one."""

    @property
    def entry(self) -> Entry:
        """Return it as an index holds it."""
        # The first bottleneck is what it is for, the others are what it also helps against.
        tags = " ".join(
            (*self.bottlenecks[:1] * 2, *self.bottlenecks, *self.backends, *self.ops, *self.archs)
        )
        return Entry(f"{self.name.replace('_', ' ')} {self.title}", tags, self.lead, self.text)


@dataclass(frozen=True)
class Question:
    """What is asked: words, and what the diagnosis and the problem say; None asks nothing."""

    words: str = ""
    op: str | None = None
    backend: str | None = None
    arch: str | None = None
    """A target such as `sm_90`, or a family such as `hopper`."""
    bottlenecks: tuple[str, ...] = ()
    """The most pressing first; they are searched for as words too."""

    def admits(self, one: Text) -> bool:
        """Tell whether a text may answer."""
        if one.card is not None and self.arch is not None and (family := architecture_of(self.arch)):
            if not Wanted(arch=family).admits(one.card):
                return False
        elif not _names(one.archs, self.arch, str(architecture_of(self.arch or "") or "")):
            return False
        return _names(one.ops, self.op) and _names(one.backends, self.backend)

    def closeness(self, one: Text) -> int:
        """Return by how many of op, language and architecture a text names what is asked for."""
        pairs = ((one.ops, self.op), (one.backends, self.backend), (one.archs, self.arch))
        return sum(wanted in own for own, wanted in pairs if wanted)


def _names(own: Sequence[str], *wanted: str | None) -> bool:
    """Tell whether a text is for something, or for everything."""
    return not own or wanted[0] is None or any(one in own for one in wanted if one)


def search(texts: Sequence[Text], question: Question) -> list[Text]:
    """Return the texts that answer a question, best first."""
    admitted = [one for one in texts if question.admits(one)]
    words = " ".join((question.words, *question.bottlenecks))
    return [admitted[place] for place in best([one.entry for one in admitted], words)]


def matching_cards(cards: Sequence[Technique], words: str) -> list[Technique]:
    """Return the cards that answer a question in plain words, best first."""
    texts = card_texts(cards)
    return [one.card for one in search(texts, facets(words, texts)) if one.card is not None]


def facets(words: str, texts: Sequence[Text]) -> Question:
    """Return a question in plain words with the op and the hardware it names."""
    lowered = set(re.findall(r"[a-z0-9_]+", words.lower()))
    spoken = lowered | {SAID[word] for word in lowered & SAID.keys()}
    ops = sorted({op for one in texts for op in one.ops} & spoken)
    archs = sorted({str(family) for word in spoken if (family := architecture_of(word))})
    return Question(
        words=words,
        op=ops[0] if len(ops) == 1 else None,
        arch=archs[0] if len(archs) == 1 else None,
    )


SAID = {
    **dict.fromkeys(("gemm", "gemv"), "matmul"),
    **dict.fromkeys(("cpu", "openmp", "avx", "avx2", "avx512", "simd"), "x86"),
    **dict.fromkeys(("h100", "h200"), "hopper"),
    **dict.fromkeys(("mi300", "mi300x"), "cdna3"),
    **dict.fromkeys(("b200", "b100"), "blackwell"),
    "a100": "ampere",
    "rotary": "rope",
}
"""Names engineers use for an op or a chip."""


def card_texts(cards: Iterable[Technique]) -> list[Text]:
    """Return the playbook as texts."""
    return [
        Text(
            name=card.name,
            title=card.title,
            text=card.markdown,
            source=Shelved.CARD,
            lead=card.section("What to do"),
            ops=card.ops,
            backends=tuple(str(one) for one in card.backends),
            archs=tuple(str(one) for one in card.archs),
            bottlenecks=tuple(str(one) for one in card.bottlenecks),
            card=card,
        )
        for card in cards
    ]


def lesson_texts(lessons: Iterable[Lesson]) -> list[Text]:
    """Return lessons as texts."""
    return [
        Text(
            name=f"lesson {one.key[:12]}",
            title=one.claim,
            text=" ".join(filter(None, (one.claim, one.effect, f"({one.scope or 'everywhere'})"))),
            source=Shelved.LESSON,
            ops=(one.op,) if one.op else (),
            backends=(one.backend,) if one.backend else (),
            archs=(one.arch,) if one.arch else (),
            bottlenecks=(one.bottleneck,) if one.bottleneck else (),
        )
        for one in lessons
    ]


def notes_folder() -> Path:
    """Return the folder of the hardware notes that come with the package."""
    return Path(kernelwright.__file__).parent / "hardware" / "notes"


@cache
def note_texts() -> tuple[Text, ...]:
    """Return the hardware notes, one text per section; a note's file name is the family it is about."""
    found: list[Text] = []
    for path in sorted(notes_folder().glob("*.md")):
        for one in passages(path.stem, path.read_text("utf-8"), Shelved.NOTE, always=True):
            found.append(replaced(one, level=Level.HARDWARE, archs=(path.stem,)))
    return tuple(found)


def replaced(one: Text, **changes: object) -> Text:
    """Return a text with some of its fields changed."""
    return Text(**{**one.__dict__, **changes})


@dataclass(frozen=True)
class File:
    """A document as it was read."""

    name: str
    """Path below the folder that was named."""
    text: str = field(repr=False)


def read_folder(folder: Path) -> list[File]:
    """Return the documents of a folder, by path; what is no text is left alone, what lies elsewhere is refused."""
    if not folder.is_dir():
        raise NotFound("Knowledge folder", folder, "Give --knowledge a folder of Markdown or text files.")
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and not path.is_dir()]
    if len(paths) > MOST_FILES:
        problem = f"it holds {len(paths)} documents; at most {MOST_FILES} are read"
        raise BadInput(str(folder), problem, "Name the folder that is meant.")
    found = []
    for path in paths:
        if problem := not_of_folder(path, folder):
            raise BadInput(str(path), problem, "Put a copy of the file there, or take it away.")
        if path.stat().st_size > MOST_BYTES:
            remedy = f"Cut it into files of at most {MOST_BYTES >> 20} MiB."
            raise BadInput(str(path), f"it has {path.stat().st_size} bytes", remedy)
        try:
            found.append(File(str(path.relative_to(folder)), path.read_text("utf-8")))
        except UnicodeDecodeError as error:
            raise BadInput(str(path), "it is no UTF-8 text", "Save it as UTF-8 or take it away.") from error
    return found


def document_texts(files: Iterable[File]) -> list[Text]:
    """Return the user's documents as texts, long ones cut at their headings."""
    found: list[Text] = []
    for file in files:
        front, body = _parted(file)
        first = file.name.split("/")[0]
        level = Level(first) if first in set(Level) else Level.GUIDANCE
        facet = {key: tuple(str(one) for one in front.get(key) or ()) for key in FACETS}
        for one in passages(file.name, body, Shelved.DOCUMENT):
            title = str(front.get("title", one.title))
            found.append(replaced(one, title=title, level=level, **facet))
    return found


def _parted(file: File) -> tuple[dict[str, Any], str]:
    """Return the front matter, if there is one, and the rest. `Any`: TOML's own types, checked by name."""
    lines = file.text.splitlines()
    if not lines or lines[0].strip() != FENCE or FENCE not in (line.strip() for line in lines[1:]):
        return {}, file.text
    end = next(number for number, line in enumerate(lines[1:], 1) if line.strip() == FENCE)
    try:
        front = tomllib.loads("\n".join(lines[1:end]))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(file.name, f"its front matter is not TOML: {error}", "Mend that line.") from error
    for key in front:
        if key != "title" and (key not in FACETS or not isinstance(front[key], list)):
            remedy = f"Give title as a text and {', '.join(FACETS)} as lists."
            raise BadInput(file.name, f"{key!r} cannot stand in front of a document", remedy)
    return front, "\n".join(lines[end + 1 :])


def passages(name: str, text: str, source: Shelved, *, always: bool = False) -> list[Text]:
    """Return a text whole, or, where it is long, cut at its second headings; each part keeps the title."""
    heading = next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), name)
    parts = re.split(r"(?m)^(?=## )", text)
    if len(parts) == 1 or (len(text) <= PASSAGE and not always):
        return [Text(name, heading, text.strip(), source, lead=text[:PASSAGE])]
    found = []
    for part in parts:
        lines = part.strip().splitlines()
        if not lines or (len(lines) == 1 and lines[0].startswith("# ")):
            continue
        own = lines[0].lstrip("# ").strip()
        title = heading if own == heading else f"{heading}: {own}"
        found.append(Text(f"{name}#{own}", title, part.strip(), source, lead="\n".join(lines[1:])))
    return found

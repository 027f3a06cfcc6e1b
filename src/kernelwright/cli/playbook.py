"""`kernelwright playbook`."""

from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.screen import (
    Answer,
    ExitCode,
    HomeOption,
    JsonFlag,
    kernelwright_home,
    out,
    print_json,
)
from kernelwright.core.technique import (
    Architecture,
    Bottleneck,
    Language,
    Technique,
    Tier,
    Wanted,
    architecture_of,
    chosen,
)

WIDE = 120
"""Columns of a terminal from which the list shows bottlenecks and languages too."""


ALSO = 3
"""Notes, lessons and documents that are named below the cards."""


class Found(Answer):
    """A text that is no card."""

    source: str
    """`note`, `lesson` or `document`."""
    name: str
    """What finds it again."""
    title: str
    """What it is about."""
    text: str
    """All of it."""


class PlaybookAnswer(Answer):
    """What `playbook --json` prints."""

    techniques: list[Technique]
    """The cards, whole: by tier and name, or best match first."""
    also: list[Found]
    """Hardware notes, lessons of earlier runs and documents that match the words, best first."""


def playbook(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Name of a card to show, or words to search for.", show_default=False),
    ] = None,
    tier: Annotated[int | None, typer.Option(help="Only this tier, 1 to 6.")] = None,
    backend: Annotated[str | None, typer.Option(help="Only cards for triton, gluon, cuda or cpp.")] = None,
    op: Annotated[str | None, typer.Option(help="Only cards that serve this kernel type.")] = None,
    arch: Annotated[
        str | None, typer.Option(help="Only cards for this hardware: hopper, or a target such as sm_90.")
    ] = None,
    bottleneck: Annotated[
        list[str] | None,
        typer.Option(help="Only cards against this, such as 'memory latency'; may be repeated, worst first."),
    ] = None,
    knowledge: Annotated[
        list[str] | None, typer.Option(help="Search this folder of documents too; may be repeated.")
    ] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """List, search and show technique cards: what to do against a bottleneck, with examples."""
    from kernelwright.store.knowledge import matching_cards
    from kernelwright.store.playbook import read_playbook

    wanted = checked(tier, backend, op, arch, bottleneck or [])
    cards = read_playbook()
    text = " ".join(words or ())
    named = [card for card in cards if card.name == text.lower().replace("-", "_").replace(" ", "_")]
    found = named or chosen(cards, wanted)
    also: list[Found] = []
    if text and not named:
        found = matching_cards(found, text)
        also = _beside(text, wanted, knowledge or [], home)
    if as_json:
        print_json(PlaybookAnswer(techniques=found, also=also))
    elif named:
        _show(named[0])
    elif found or also:
        _list(found, by_tier=not text and not bottleneck)
        for one in also:
            out().print(f"{one.source} {one.name}: {one.title}", markup=False)
    else:
        out().print(
            f"no card matches{f' {text!r}' if text else ''}; `kernelwright playbook` lists all", markup=False
        )
    return ExitCode.OK if found or also else ExitCode.NEGATIVE


def _beside(text: str, wanted: Wanted, folders: list[str], home: Path | None) -> list[Found]:
    """Return what else answers: hardware notes, lessons of earlier runs, documents of the folders."""
    from kernelwright.store import knowledge
    from kernelwright.store.lessons import Shelf, shelf_file

    kept = Shelf(shelf_file(kernelwright_home(home))).lessons()
    files = [file for folder in folders for file in knowledge.read_folder(Path(folder))]
    texts = [*knowledge.note_texts(), *knowledge.lesson_texts(one.lesson for one in kept)]
    texts += knowledge.document_texts(files)
    asked = knowledge.facets(text, texts)
    question = knowledge.Question(
        words=text,
        op=wanted.op or asked.op,
        backend=wanted.backend,
        arch=wanted.arch or asked.arch,
        bottlenecks=tuple(str(one) for one in wanted.bottlenecks),
    )
    return [
        Found(source=one.source.value, name=one.name, title=one.title, text=one.text)
        for one in knowledge.search(texts, question)[:ALSO]
    ]


def checked(
    tier: int | None, backend: str | None, op: str | None, arch: str | None, bottlenecks: list[str]
) -> Wanted:
    """Return what is asked for, every word checked against the names there are."""
    from kernelwright.core import plugins
    from kernelwright.core.errors import BadInput, UnknownName

    if tier is not None and tier not in set(Tier):
        raise BadInput("--tier", f"{tier} is no tier", "Give a number from 1 to 6.")
    if backend is not None and backend not in set(Language):
        raise UnknownName("backend", backend, list(Language))
    if op is not None and op not in (ops := plugins.names("ops")):
        raise UnknownName("op", op, ops)
    family = architecture_of(arch) if arch is not None else None
    if arch is not None and family is None:
        raise UnknownName("architecture", arch, list(Architecture))
    against = [word.lower().replace("_", " ") for word in bottlenecks]
    for word in against:
        if word not in set(Bottleneck):
            raise UnknownName("bottleneck", word, list(Bottleneck))
    return Wanted(
        tier=None if tier is None else Tier(tier),
        backend=None if backend is None else Language(backend),
        op=op,
        arch=family,
        bottlenecks=tuple(Bottleneck(word) for word in against),
    )


def _list(cards: list[Technique], by_tier: bool) -> None:
    """Print one line per card, tiers apart where they are in order."""
    from rich.table import Table

    console = out()
    is_wide = console.width >= WIDE
    table = Table("tier", box=None, pad_edge=False)
    table.add_column("card", no_wrap=True)
    for heading in ("what", "against", "in", "gain") if is_wide else ("what", "gain"):
        table.add_column(heading)
    last: Tier | None = None
    for card in cards:
        if by_tier and last is not None and card.tier != last:
            table.add_section()
        last = card.tier
        tags = (", ".join(card.bottlenecks), " ".join(card.backends) or "any") if is_wide else ()
        gain = f"{card.gain.factors} {card.gain.basis.value}"
        table.add_row(str(int(card.tier)), card.name, card.title, *tags, gain)
    console.print(table)
    console.print(f"{len(cards)} cards; `kernelwright playbook NAME` shows one", style="dim")


def _show(card: Technique) -> None:
    """Print one card, rendered on a terminal and as Markdown elsewhere."""
    from rich.markdown import Markdown

    console = out()
    console.print(Markdown(card.markdown) if console.is_terminal else card.markdown, markup=False)

"""Tools that look things up: techniques and hardware notes, lessons of earlier runs, kernels of earlier runs."""

from pydantic import Field

from kernelwright.cli.mcp.tool import Arguments, Place, Tool
from kernelwright.cli.playbook import checked
from kernelwright.cli.screen import Answer
from kernelwright.core import plugins
from kernelwright.core.errors import UnknownName
from kernelwright.core.shelf import KeptLesson
from kernelwright.engine.past_kernels import PastKernel, Search, past_kernels
from kernelwright.store.knowledge import Question, card_texts, note_texts
from kernelwright.store.knowledge import search as found_by
from kernelwright.store.lessons import Scope, Shelf, shelf_file
from kernelwright.store.playbook import read_playbook

MOST = 50


class AboutKernels(Arguments):
    """What kernels the question is about."""

    op: str | None = None
    """Only what serves this kernel type."""
    backend: str | None = None
    """Only this language: triton, cuda, cpp."""


class PlaybookSearch(AboutKernels):
    """What is looked for in the playbook."""

    words: str = ""
    """A question in plain words, such as `uncoalesced loads on Hopper`; or the name of a card."""
    arch: str | None = None
    """Only this hardware: hopper, or a target such as sm_90."""
    bottleneck: tuple[str, ...] = ()
    """What a kernel waits for, worst first, such as `memory latency`."""
    most: int = Field(default=3, ge=1, le=MOST)
    """How many at most."""


class LessonsAbout(AboutKernels):
    """What lessons are looked for."""

    words: str = ""
    """Words they should hold; none lists the best standing first."""
    arch: str | None = None
    """Only this architecture, as runs name it: sm_90, x86_64."""
    bottleneck: str | None = None
    """Only against this bottleneck."""
    most: int = Field(default=10, ge=1, le=MOST)
    """How many at most."""


class SearchKernels(AboutKernels):
    """What kernels of past runs are looked for."""

    constructs: tuple[str, ...] = ()
    """Words that must all be in the source, such as `_mm512_fmadd_ps`, `tl.dot` or `num_stages`."""
    min_speed: float | None = Field(default=None, gt=0)
    """Only kernels at least so many times as fast as their baseline, certified."""
    with_failures: bool = False
    """Also what was rejected, to see what does not work."""
    with_source: bool = False
    """Give whole sources."""
    most: int = Field(default=5, ge=1, le=MOST)
    """How many at most, fastest first."""


class Entry(Answer):
    """Something the playbook says."""

    name: str
    """A card's name, or a note's section."""
    title: str
    """What it is about, in one line."""
    source: str
    """`card` or `note`."""
    text: str
    """All of it, with worked examples."""


class PlaybookAnswer(Answer):
    """What the playbook says."""

    entries: list[Entry]
    """Best match first."""


class LessonsAnswer(Answer):
    """What earlier runs have learnt."""

    lessons: list[KeptLesson]
    """Best standing or best match first, each with what confirms and what contradicts it."""


class KernelsAnswer(Answer):
    """Kernels of past runs."""

    kernels: list[PastKernel]
    """Fastest first, each once."""
    unread: list[str]
    """Runs that could not be read, and why."""


def playbook_search(_: Place, wanted: PlaybookSearch) -> PlaybookAnswer:
    """Search technique cards and hardware notes: what to do against a bottleneck, with worked examples."""
    asked = checked(None, wanted.backend, wanted.op, wanted.arch, list(wanted.bottleneck))
    cards = read_playbook()
    named = [card for card in cards if card.name == wanted.words.lower().replace("-", "_").replace(" ", "_")]
    texts = [*card_texts(named or cards), *(() if named else note_texts())]
    question = Question(
        words=wanted.words,
        op=wanted.op,
        backend=wanted.backend,
        arch=wanted.arch,
        bottlenecks=tuple(one.value for one in asked.bottlenecks),
    )
    says_anything = wanted.words or wanted.bottleneck
    found = (
        texts
        if named
        else found_by(texts, question)
        if says_anything
        else list(filter(question.admits, texts))
    )
    return PlaybookAnswer(
        entries=[
            Entry(name=one.name, title=one.title, source=one.source.value, text=one.text)
            for one in found[: wanted.most]
        ]
    )


def lessons(place: Place, wanted: LessonsAbout) -> LessonsAnswer:
    """List what earlier runs have learnt: cited claims with their measured effect, what to do and what to avoid."""
    _check_op(wanted.op)
    scope = Scope(wanted.op, wanted.backend, wanted.arch, wanted.bottleneck)
    return LessonsAnswer(lessons=Shelf(shelf_file(place.home)).lessons(scope, wanted.words)[: wanted.most])


def search_kernels(place: Place, wanted: SearchKernels) -> KernelsAnswer:
    """Search the kernels of past runs by op, by language, by constructs in the source and by certified speed."""
    _check_op(wanted.op)
    asked = Search(
        op=wanted.op,
        backend=wanted.backend,
        constructs=wanted.constructs,
        min_speed=wanted.min_speed,
        with_failures=wanted.with_failures,
        with_source=wanted.with_source,
        most=wanted.most,
    )
    found, unread = past_kernels(place.home, asked)
    return KernelsAnswer(kernels=found, unread=unread)


def _check_op(op: str | None) -> None:
    if op is not None and op not in (known := plugins.names("ops")):
        raise UnknownName("op", op, known)


TOOLS = (
    Tool(playbook_search, PlaybookSearch, PlaybookAnswer),
    Tool(lessons, LessonsAbout, LessonsAnswer),
    Tool(search_kernels, SearchKernels, KernelsAnswer),
)

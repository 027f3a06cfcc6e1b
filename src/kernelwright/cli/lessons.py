"""`kernelwright lessons`: what earlier runs have learnt, listed, shown, carried out and brought in."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from kernelwright.core.errors import BadInput, UnknownName
from kernelwright.core.shelf import EarlierWinner, KeptLesson

if TYPE_CHECKING:
    from kernelwright.store.lessons import Shelf

OpOption = Annotated[str | None, typer.Option(help="Only what holds for this kernel type.")]
BackendOption = Annotated[str | None, typer.Option(help="Only what holds in this language.")]
ArchOption = Annotated[str | None, typer.Option(help="Only what holds on this architecture: sm_90, x86_64.")]
SHORT = 12
"""Digits of a key that name a lesson."""


class LessonRow(Answer):
    """One lesson of the shelf."""

    key: str
    """What names it."""
    standing: str
    """`promoted`, `new` or `demoted`."""
    confirmed: int
    """Places that have shown it."""
    contradicted: int
    """Places that have shown the contrary."""
    kept: KeptLesson
    """The lesson with everything seen of it."""


class LessonsAnswer(Answer):
    """What `lessons list --json` and `lessons show --json` print."""

    shelf: str
    """The file they are in."""
    lessons: list[LessonRow]
    """Best standing first, or best match first."""
    winners: list[EarlierWinner]
    """Kernels that later runs begin with on similar problems."""


class CarriedAnswer(Answer):
    """What `lessons export --json` and `lessons import --json` print."""

    file: str
    """The file of lines."""
    lessons: int
    """Lessons in it."""
    winners: int
    """Winners in it."""


def app() -> typer.Typer:
    """Return the sub-commands."""
    found = typer.Typer(
        help="What earlier runs have learnt: list, show, export, import.", no_args_is_help=True
    )
    found.command("list")(list_)
    found.command("show")(show)
    found.command("export")(export)
    found.command("import")(import_)
    return found


def _shelf(home: Path | None) -> "Shelf":
    from kernelwright.store.lessons import Shelf, shelf_file

    return Shelf(shelf_file(kernelwright_home(home)))


def list_(
    words: Annotated[
        list[str] | None, typer.Argument(help="Words to search for; none lists all.", show_default=False)
    ] = None,
    op: OpOption = None,
    backend: BackendOption = None,
    arch: ArchOption = None,
    bottleneck: Annotated[str | None, typer.Option(help="Only what was learnt against this.")] = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """List lessons, the best standing or the best match first, and the winners kept with them."""
    from kernelwright.store.lessons import Scope

    shelf, scope = _shelf(home), Scope(op, backend, arch, bottleneck)
    kept = shelf.lessons(scope, " ".join(words or ()))
    winners = [] if words or bottleneck else shelf.winners(scope)
    if as_json:
        print_json(_answer(shelf, kept, winners))
    else:
        _print_list(kept, winners)
    return ExitCode.OK if kept or winners else ExitCode.NEGATIVE


def show(
    key: Annotated[str, typer.Argument(help="The beginning of a lesson's key, as `lessons list` shows it.")],
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Show one lesson with everything that was seen of it."""
    shelf = _shelf(home)
    kept = shelf.lessons()
    found = [one for one in kept if one.lesson.key.startswith(key)]
    if len(found) != 1:
        if found:
            raise BadInput("KEY", f"{len(found)} lessons begin with {key!r}", "Give more of it.")
        raise UnknownName("lesson", key, [one.lesson.key[:SHORT] for one in kept])
    if as_json:
        print_json(_answer(shelf, found, []))
    else:
        _print_one(found[0])
    return ExitCode.OK


def export(
    file: Annotated[Path, typer.Argument(help="File to write, one line of JSON each.")],
    op: OpOption = None,
    backend: BackendOption = None,
    arch: ArchOption = None,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Write lessons and winners to a file that another machine can import."""
    from kernelwright.store.disk import disk_errors
    from kernelwright.store.lesson_lines import lines_of
    from kernelwright.store.lessons import Scope

    shelf, scope = _shelf(home), Scope(op, backend, arch)
    kept, winners = shelf.lessons(scope), shelf.winners(scope)
    with disk_errors(file):
        file.write_text("".join(f"{line}\n" for line in lines_of(kept, winners)), encoding="utf-8")
    return _carried(file, len(kept), len(winners), as_json, "written to")


def import_(
    file: Annotated[Path, typer.Argument(help="A file that `lessons export` wrote.")],
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> int:
    """Take over the lessons and winners of a file; what is there already stays as it is."""
    from kernelwright.store.lesson_lines import findings_in

    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BadInput(
            str(file), "does not exist", "Give a file of `kernelwright lessons export`."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(file), f"cannot be read: {error}", "Give a file in UTF-8.") from error
    found = findings_in(text, str(file))
    _shelf(home).add(found, is_foreign=True)
    return _carried(file, len(found.learnt), len(found.winners), as_json, "taken from")


def _carried(file: Path, lessons: int, winners: int, as_json: bool, words: str) -> int:
    if as_json:
        print_json(CarriedAnswer(file=str(file), lessons=lessons, winners=winners))
    else:
        out().print(f"{lessons} lessons and {winners} winners {words} {file}", markup=False, soft_wrap=True)
    return ExitCode.OK


def _answer(shelf: "Shelf", kept: list[KeptLesson], winners: list[EarlierWinner]) -> LessonsAnswer:
    rows = [
        LessonRow(
            key=one.lesson.key,
            standing=one.standing.value,
            confirmed=one.confirmed,
            contradicted=one.contradicted,
            kept=one,
        )
        for one in kept
    ]
    return LessonsAnswer(shelf=str(shelf.path), lessons=rows, winners=winners)


def _print_list(kept: list[KeptLesson], winners: list[EarlierWinner]) -> None:
    from rich.table import Table

    console = out()
    if not kept and not winners:
        console.print("no lesson matches; runs add them when they end", markup=False)
        return
    table = Table("lesson", "standing", "for", "against", "effect", "holds for", "claim", box=None)
    for one in kept:
        lesson = one.lesson
        claim = f"avoid: {lesson.claim}" if lesson.teaching == "trap" else lesson.claim
        counts = (str(one.confirmed), str(one.contradicted))
        table.add_row(lesson.key[:SHORT], one.standing.value, *counts, lesson.effect, lesson.scope, claim)
    console.print(table)
    for winner in winners:
        sizes = ", ".join(shape.label for shape in winner.shapes)
        words = f"winner: {winner.op} {sizes} in {winner.backend} on {winner.arch}"
        words += f", x{winner.ratio:.2f}, run {winner.run_id}"
        console.print(words, markup=False, soft_wrap=True)


def _print_one(kept: KeptLesson) -> None:
    lesson, console = kept.lesson, out()
    sizes = ", ".join(shape.label for shape in lesson.shapes)
    values = ", ".join(f"{name}={value}" for name, value in lesson.values.items())
    facts = {
        "claim": lesson.claim,
        "teaches": lesson.teaching.value,
        "holds for": lesson.scope or "everything",
        "learnt at": sizes,
        "effect": lesson.effect,
        "move": lesson.move,
        "values": values,
        "author": lesson.author,
        "standing": f"{kept.standing.value}: {kept.confirmed} places for, {kept.contradicted} against",
    }
    for name, value in facts.items():
        if value:
            console.print(f"{name}: {value}", markup=False, soft_wrap=True)
    for one in kept.sightings:
        word = "confirms" if one.confirms else "contradicts"
        ratio = f" x{one.ratio:.3f}" if one.ratio else ""
        cited = ", ".join(own[:SHORT] for own in one.evaluations)
        console.print(
            f"{word}: run {one.run_id}, problem {one.problem_hash[:SHORT]}{ratio}; rests on {cited}",
            markup=False,
        )

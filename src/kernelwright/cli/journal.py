"""`kernelwright journal verify` and `kernelwright journal events`."""

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

RunArgument = Annotated[str, typer.Argument(help="Run id, unique prefix, path of a run folder, or `last`.")]


class VerifyAnswer(Answer):
    """What `journal verify --json` prints."""

    run_id: str
    """Which run."""
    sound: bool
    """Whether every event and the run's row are as they were written."""
    events: int | None
    """Events checked, if sound."""
    fault: str | None
    """Kind of the first fault, if damaged."""
    seq: int | None
    """Number of the first bad event, if one is at fault."""
    problem: str | None
    """What is wrong with it."""


class EventRow(Answer):
    """One event."""

    seq: int
    """Its number."""
    at: str
    """When it was appended, in UTC."""
    kind: str
    """What happened."""
    hash: str
    """Its link in the chain."""


class EventsAnswer(Answer):
    """What `journal events --json` prints."""

    run_id: str
    """Which run."""
    events: list[EventRow]
    """The events asked for."""


def app() -> typer.Typer:
    """Return the sub-commands."""
    group = typer.Typer(
        help="Look into a run's append-only journal.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("verify")(verify)
    group.command("events")(events)
    return group


def verify(run: RunArgument = "last", as_json: JsonFlag = False, home: HomeOption = None) -> int:
    """Check the whole hash chain; names the first event that was changed, removed or moved."""
    from kernelwright.cli.runs import open_run
    from kernelwright.store.chain import Damaged

    journal, _ = open_run(kernelwright_home(home), run)
    found = journal.verify()
    damaged = found if isinstance(found, Damaged) else None
    answer = VerifyAnswer(
        run_id=journal.run_id,
        sound=damaged is None,
        events=None if isinstance(found, Damaged) else found.events,
        fault=damaged.fault.value if damaged else None,
        seq=damaged.seq if damaged else None,
        problem=damaged.problem if damaged else None,
    )
    if as_json:
        print_json(answer)
    elif damaged:
        where = f"event {damaged.seq}" if damaged.seq is not None else "the run's row"
        out().print(f"{journal.run_id}: {where} is {damaged.fault.value}: {damaged.problem}", markup=False)
    else:
        out().print(f"{journal.run_id}: {answer.events} events, chain sound")
    return ExitCode.NEGATIVE if damaged else ExitCode.OK


def events(
    run: RunArgument = "last",
    start: Annotated[int, typer.Option(help="First event to list.")] = 0,
    limit: Annotated[int, typer.Option(help="How many at most.")] = 100,
    as_json: JsonFlag = False,
    home: HomeOption = None,
) -> None:
    """List events with their time and hash."""
    from itertools import islice

    from kernelwright.cli.runs import open_run

    journal, _ = open_run(kernelwright_home(home), run)
    rows = [
        EventRow(
            seq=event.seq, at=event.at.isoformat(timespec="seconds"), kind=event.body.kind, hash=event.hash
        )
        for event in islice(journal.events(start), limit)
    ]
    answer = EventsAnswer(run_id=journal.run_id, events=rows)
    if as_json:
        print_json(answer)
        return
    for row in rows:
        out().print(f"{row.seq:6d}  {row.at}  {row.kind:20} {row.hash[:12]}")

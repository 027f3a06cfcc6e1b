"""The sittings of a run: when it was begun and when it was taken up again, so that its budget knows what is spent.

They lie beside the journal, not in it: a run that was interrupted has the same events as one that was not.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from kernelwright.core.events import Event, problem_of
from kernelwright.engine.run import Spent
from kernelwright.store.disk import disk_errors

FILE = "sittings.tsv"


def sit_down(folder: Path, seq: int, now: datetime) -> None:
    """Note that a sitting begins, with the number of the event it will append first."""
    with disk_errors(folder), (folder / FILE).open("a") as stream:
        stream.write(f"{now.astimezone(UTC).isoformat()}\t{seq}\n")


def sittings(folder: Path) -> dict[int, datetime]:
    """Return when each sitting began, by the number of its first event."""
    path = folder / FILE
    if not path.exists():
        return {}
    rows = [line.split("\t") for line in path.read_text().splitlines() if line.count("\t") == 1]
    return {int(seq): datetime.fromisoformat(at) for at, seq in rows}


def spent(events: Iterable[Event], begun: dict[int, datetime]) -> Spent:
    """Return what earlier sittings took: the time before each event, but not the time nobody sat there."""
    found = Spent()
    before: datetime | None = None
    for event in events:
        start = begun.get(event.seq, before)
        if start is not None:
            took = max(0.0, (event.at - start).total_seconds())
            if key := problem_of(event.body):
                found.add(key, took)
            else:
                found.seconds += took
        before = event.at
    return found

"""Another way of dealing iterations out to threads: fixed shares cost nothing, handing out one by one evens them."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.core.plan_language import PlanFault
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.technique import Bottleneck
from kernelwright.moves._cpp import Edit, Pragma, Unit, Unparsed, edited, parse
from kernelwright.moves._params import led_by

SUMMARY = "the schedule of a parallel loop as a parameter: static, dynamic or guided"
BACKENDS = ("cpp",)
AGAINST = (Bottleneck.THREAD_IMBALANCE, Bottleneck.SYNCHRONISATION, Bottleneck.LAUNCH_OVERHEAD)
KINDS = {
    "static": ("dynamic", "guided"),
    "dynamic": ("static", "guided"),
    "guided": ("static", "dynamic"),
}
"""Schedules, and what to try instead, first choice first."""


@dataclass(frozen=True)
class Clause:
    """The kind inside a `schedule(kind)`."""

    start: int
    end: int
    kind: str


def apply(subject: Subject) -> Sequence[Moved] | str:
    """Return one source per loop with a schedule, its kind a parameter led by another one."""
    try:
        unit = parse(subject.source, subject.backend)
        clauses = [clause for pragma in unit.pragmas if (clause := _clause(pragma))]
        found = [
            _moved(subject, unit, number, clause)
            for number, clause in enumerate(clauses, 1)
            if clause.kind in KINDS
        ]
    except (PlanFault, Unparsed) as error:
        return str(error)
    return found or "no parallel loop names a schedule that is not a parameter yet"


def _clause(pragma: Pragma) -> Clause | None:
    """Return the schedule's kind in an OpenMP directive, read word by word."""
    words = pragma.text.split("schedule", 1)
    if pragma.text.split()[1:2] != ["omp"] or len(words) != 2:
        return None
    inside = words[1].strip()
    kind = inside[1:].split(")", 1)[0].split(",")[0].strip() if inside.startswith("(") else ""
    if not kind:
        return None
    start = pragma.start + len(pragma.text[: pragma.text.index(kind, len(words[0]))].encode())
    return Clause(start, start + len(kind), kind)


def _moved(subject: Subject, unit: Unit, number: int, clause: Clause) -> Moved:
    name, kind = f"SCHEDULE_{number}", KINDS[clause.kind][0]
    text = edited(unit, [Edit(clause.start, clause.end, name)], subject.backend)
    source = led_by(text, {name: kind}, subject.backend, {name: [clause.kind, *KINDS[clause.kind]]})
    return Moved(source, f"parallel loop {number} {kind} instead of {clause.kind}", {name: kind})

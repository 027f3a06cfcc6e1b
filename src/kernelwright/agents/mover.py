"""The mover: mechanical rewrites of the first parent, one per answer; no key and no language model.

1. Lessons about other sizes, the brief's diagnosis, its technique cards and its seed put the moves of the drawer in an
   order; what lessons warn of comes last.
2. Each in turn is applied to the parsed source. What does not apply says why; what siblings tried waits until every
   other move had its turn; what the tree holds already, what changes a marked source outside its regions, what the
   language's own guards refuse and what the plan declines on a case of the problem is passed over.
3. With two parents, the second one's move is repeated on the first; if it was no move, its values are taken over.
4. Values chosen for the parent stay as they are; only those that the move sets change.
5. A bold brief is answered with two moves in a row, where two apply: what either alone did not reach.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelwright.core import plugins
from kernelwright.core.brief import Answer, Brief, Proposal
from kernelwright.core.candidate import Author, Candidate, ParamChoice
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.frozen import digest
from kernelwright.core.lesson import Shape, Teaching
from kernelwright.core.marked import outside_unchanged
from kernelwright.core.normal import key_of
from kernelwright.core.plan_language import PlanFault, first_values, parse_params, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.ports import Moved, Subject
from kernelwright.core.problem import Problem

SUMMARY = "mechanical rewrites on parsed code; needs no key; --author mover:MOVE,MOVE takes these alone"
NAMED = "- move: "
"""How a technique card names the move that does it."""
MOST_REASONS = 6


def author(detail: str = "") -> "Mover":
    """Return the mover; `detail` names the only moves it may make, separated by commas."""
    return Mover(tuple(name.strip() for name in detail.split(",") if name.strip()))


@dataclass(frozen=True)
class Mover:
    """The author; it has no state."""

    only: tuple[str, ...] = ()
    """Moves it may make; none means every one."""

    def propose(self, brief: Brief) -> Answer:
        """Return the first move that gives something new, or why none does."""
        if not brief.parents:
            return Answer(reason="there is no source to move")
        unknown = [name for name in self.only if name not in plugins.names("moves")]
        if unknown:
            return Answer(reason=f"there is no move {', '.join(unknown)}")
        return Moving(brief, self.only).answer()


@dataclass
class Moving:
    """One answer in the making."""

    brief: Brief
    only: tuple[str, ...]

    def __post_init__(self) -> None:
        """Note what is moved and what was tried."""
        self.parent: Candidate = self.brief.parents[0]
        problem = self.brief.problem
        self.subject = Subject(
            self.parent.source, self.parent.backend, self.parent.op, problem.cases, problem.device
        )
        made = [
            one for one in self.brief.attempts if one.relation == "sibling" and one.author.name == "mover"
        ]
        self.tried = {one.author.detail for one in made}
        self.reasons: list[str] = []

    def answer(self) -> Answer:
        """Return one proposal, or a reason."""
        for proposal in self._proposals():
            if self._is_worth_judging(proposal):
                return Answer(proposals=(proposal,))
        told = "; ".join(self.reasons[:MOST_REASONS]) or "all that applies was tried"
        return Answer(reason=f"no move gives anything new: {told}")

    def _proposals(self) -> Iterator[Proposal]:
        """Yield what could be proposed, the best first."""
        for other in self.brief.parents[1:2]:
            yield from self._combined(other)
        names = ordered(self.brief, self.only)
        if self.brief.bold:
            yield from self._twice(names)
        moved = {name.partition(":")[0] for name in self.tried}
        for name in names:
            if name not in moved:
                yield from (self._proposal(name, way) for way in self._ways(name)[:1])
        for name in names:
            yield from (
                self._proposal(name, way)
                for way in self._ways(name)
                if f"{name}: {way.note}" not in self.tried
            )

    def _twice(self, names: Sequence[str]) -> Iterator[Proposal]:
        """Yield the parent after two different moves, each in its first way, but for pairs a sibling has."""
        made = {name.partition(":")[0] for name in self.tried}
        for place, first in enumerate(names, 1):
            for way in self._ways(first)[:1]:
                middle = self.parent.model_copy(
                    update={"source": way.source, "choices": carried(self.parent, way)}
                )
                then = Moving(self.brief.model_copy(update={"parents": (middle,)}), self.only)
                for second in names[place:] if middle.choices else ():
                    for more in () if f"{first}+{second}" in made else then._ways(second)[:1]:
                        both = f"{way.note}; {second.replace('_', ' ')}: {more.note}"
                        yield then._proposal(f"{first}+{second}", Moved(more.source, both, more.values))

    def _ways(self, name: str) -> Sequence[Moved]:
        """Return what a move makes of the parent; why it makes nothing is remembered."""
        move = plugins.load("moves", name)
        if self.parent.backend not in move.BACKENDS:
            return ()
        found: Sequence[Moved] | str = move.apply(self.subject)
        if isinstance(found, str):
            reason = f"{name}: {found}"
            self.reasons += [] if reason in self.reasons else [reason]
            return ()
        return found

    def _combined(self, other: Candidate) -> Iterator[Proposal]:
        """Yield the first parent with what the second one has: its move, or else its values."""
        name, _, note = other.author.detail.partition(": ")
        if other.author.name == "mover" and name in plugins.names("moves"):
            ways = [way for way in self._ways(name) if way.note == note] or self._ways(name)[:1]
            yield from (self._proposal(name, way) for way in ways)
        try:
            grid = parse_params(self.parent.source)
        except PlanFault:
            return
        values = {key: value for key, value in other.choices[-1].values.items() if value in grid.get(key, ())}
        if values and other.backend == self.parent.backend:
            way = Moved(self.parent.source, "values of the second parent", values)
            yield self._proposal("values", way)

    def _proposal(self, name: str, way: Moved) -> Proposal:
        return Proposal(
            source=way.source,
            backend=self.parent.backend,
            author=Author(name="mover", detail=f"{name}: {way.note}"),
            note=f"{name.replace('_', ' ')}: {way.note}",
            choices=carried(self.parent, way),
        )

    def _is_worth_judging(self, proposal: Proposal) -> bool:
        """Tell whether the tree lacks it, the language takes it and its plan serves every case."""
        if key_of(proposal.candidate(self.brief.problem)) in self.brief.known:
            return False
        try:
            refused = plugins.load("backends", proposal.backend).check(proposal.source)
        except KernelwrightError as error:
            refused = str(error)
        refused = refused or outside_unchanged(self.parent.source, proposal.source)
        refused = refused or declined(proposal.candidate(self.brief.problem), self.brief.problem)
        if refused:
            self.reasons.append(f"{proposal.author.detail}: {refused}")
        return not refused


def ordered(brief: Brief, only: Sequence[str] = ()) -> list[str]:
    """Return the moves in the order they are tried: taught, against the diagnosis, on a card, by the seed's lot."""
    names = [name for name in plugins.names("moves") if not only or name in only]
    random.Random(digest(f"mover:{brief.seed}")).shuffle(names)
    lines = [line for card in brief.cards for line in card.splitlines() if line.startswith(NAMED)]
    carded = [line.removeprefix(NAMED).strip() for line in lines]
    wanted = brief.diagnoses[brief.diagnosis] if brief.diagnosis < len(brief.diagnoses) else ""

    taught, warned = lessons_of(brief)

    def place(name: str) -> tuple[int, int, int]:
        against = [str(one) for one in plugins.load("moves", name).AGAINST]
        first = next((at for at, one in enumerate(against) if wanted and one in wanted), len(against))
        is_against = first < len(against)
        known = -1 if name in taught else 1 if name in warned else 0
        return known, first if is_against else 9, carded.index(name) if name in carded else len(carded)

    found = sorted(names, key=place)
    # Without a diagnosis of its own, each expansion of a parent begins with another move.
    turn = 0 if wanted or not found else brief.diagnosis % len(found)
    return found[turn:] + found[:turn]


def lessons_of(brief: Brief) -> tuple[set[str], set[str]]:
    """Return the moves that paid elsewhere in this scope, and those that only failed; what was learnt here is known."""
    here = {Shape.of(case).label for case in brief.problem.cases}
    told = [one for one in brief.lessons if one.move and {shape.label for shape in one.shapes} != here]
    gains = {one.move for one in told if one.teaching is Teaching.GAIN}
    return gains, {one.move for one in told if one.teaching is Teaching.TRAP} - gains


def carried(parent: Candidate, way: Moved) -> tuple[ParamChoice, ...]:
    """Return the parent's table for a moved source: its values where they still exist, and those the move sets."""
    try:
        first, grid = first_values(way.source), parse_params(way.source)
    except PlanFault:
        return ()  # the static guards refuse the file by name
    rows = []
    for choice in parent.choices:
        kept = {name: choice.values.get(name, value) for name, value in first.items()}
        valid = {name: value if value in grid[name] else first[name] for name, value in kept.items()}
        rows.append(ParamChoice(case_hashes=choice.case_hashes, values=valid | dict(way.values)))
    return tuple(rows)


def declined(candidate: Candidate, problem: Problem) -> str | None:
    """Return why a candidate's plan does not serve a case of a problem; a source without a plan says nothing."""
    try:
        plan = parse_plan(candidate.source)
    except PlanFault:
        return None
    for case in problem.cases:
        try:
            run_plan(plan, case, candidate.values_for(case.hash), problem.device)
        except PlanFault as fault:
            return f"{case.label}: {fault}"
    return None

"""The tuner: the values of a source's `PARAMS`, chosen per case by cheap looks; the source itself stays as it is.

1. Everything it knows is in the brief: the looks taken so far. Nothing is kept between two answers, so a resumed run
   goes on where it stopped.
2. Per case it first asks for looks at the values the parent has, then at those that were best on the nearest cases, on
   the ancestors' sources and in lessons of other runs, then at what Optuna's sampler suggests. What the plan declines
   is never looked at, and neither are values that launch what others launch on that case: an fp32 product reads few of
   the parameters of a seed that has tensor cores in mind.
3. Successive halving: all values get one look, the best third of them three, the best ninth five.
4. The best values of each case become a table, with a rule for unseen shapes. If the tree holds that table already,
   more values are looked at; when there are none left, it says so.
"""

import ast
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from statistics import median

from kernelwright.agents._sampler import Space, Values, ask, key
from kernelwright.core import plugins
from kernelwright.core.brief import Answer, Brief, Proposal, Trial
from kernelwright.core.candidate import Author, Candidate, ParamChoice
from kernelwright.core.case import Case
from kernelwright.core.frozen import digest
from kernelwright.core.lesson import Shape, Teaching, apart
from kernelwright.core.normal import key_of
from kernelwright.core.plan_language import PlanFault, first_values, parse_params, parse_plan
from kernelwright.core.plan_run import run_plan
from kernelwright.core.verdict import Screening, Status

SUMMARY = "values of PARAMS per case by cheap looks; needs no key"
FIRST, MORE, MOST, BOLD_MOST = 12, 8, 96, 288
"""Values looked at per case before the first table, before each further one, at most, and at most where the search is
to be bold."""
RUNGS = ((1, 1), (3, 3), (9, 5))
"""Successive halving: the best 1/n of the values get so many looks."""
NEAREST = 3
"""Values taken over from the nearest other case, and from the ancestors."""
PLANS = 2000
"""Plans run in search of one that is new, per case and answer: 0.2 to 0.5 ms each. Who finds none has seen them all."""
INDIFFERENT = 0.01
"""Values within this of the best are no reason to leave those the parent has."""


def author(detail: str = "") -> "Tuner":  # noqa: ARG001 - it has no options
    """Return the tuner."""
    return Tuner()


@dataclass
class Tally:
    """What the looks say of one case."""

    case: Case
    seen: dict[str, tuple[Values, list[float | None]]]
    """Values and the time of every look at them, None where they did not run; in order of the first look."""

    def time(self, own: str) -> float | None:
        """Return ln(median time) of some values; None if they were not seen or did not run."""
        _, times = self.seen.get(own, ({}, []))
        if not times or None in times:
            return None
        return math.log(median(time for time in times if time is not None))

    def best(self) -> list[str]:
        """Return the keys of the values that run, fastest first."""
        times = {own: time for own in self.seen if (time := self.time(own)) is not None}
        return sorted(times, key=lambda own: times[own])

    def looks(self, own: str) -> int:
        """Return how often some values were looked at."""
        return len(self.seen[own][1]) if own in self.seen else 0


class Tuner:
    """The author; it has no state."""

    def propose(self, brief: Brief) -> Answer:
        """Return the looks it still needs, or the table they favour, or why there is nothing."""
        if not brief.parents:
            return Answer(reason="there is no source whose values could be tuned")
        try:
            space = Space(parse_params(brief.parents[0].source))
        except PlanFault as fault:
            return Answer(reason=f"PARAMS cannot be read: {fault}")
        if space.size <= 1:
            return Answer(reason="PARAMS offers no choice")
        return Tuning(brief, space).answer()


@dataclass
class Tuning:
    """One answer in the making."""

    brief: Brief
    space: Space

    def __post_init__(self) -> None:
        """Sort the looks by case."""
        self.parent: Candidate = self.brief.parents[0]
        self.tallies = {
            case.hash: tally(case, self.brief.screenings, self.space)
            for case in (*self.brief.problem.cases, *self.brief.cases)
        }
        try:
            self.plan: ast.FunctionDef | None = parse_plan(self.parent.source)
        except PlanFault:
            self.plan = None
        # Elsewhere a plan is no more than a function of that name: the values may be read by host code too.
        self.is_planned = plugins.load("backends", self.parent.backend).TIER == "A"
        self.launches: dict[tuple[str, str], str | None] = {}
        self.spent: set[str] = set()
        """Cases for which there are no new values."""
        self.own = [self.tallies[case.hash] for case in self.brief.problem.cases]

    def answer(self) -> Answer:
        """Return looks wanted, a table, or a reason."""
        most = min(BOLD_MOST if self.brief.bold else MOST, self.space.size)
        for target in (*range(min(FIRST, most), most, MORE), most):
            wanted = list(self._wanted(target))
            if wanted:
                return Answer(trials=tuple(wanted), reason=f"{len(wanted)} looks first")
            choices = self._table()
            if choices is None:
                continue
            proposal = self._proposal(choices)
            if key_of(proposal.candidate(self.brief.problem)) not in self.brief.known:
                return Answer(proposals=(proposal,))
        for one in self.own:
            if not one.best():
                return Answer(reason=f"none of {len(one.seen)} sets of values runs on {one.case.label}")
        seen = max(len(one.seen) for one in self.own)
        return Answer(reason=f"every table that {seen} of {self.space.size} sets of values favour was tried")

    def _wanted(self, target: int) -> Iterator[Trial]:
        """Yield the looks still missing for a table out of so many values, the cases in turn."""
        room = self.brief.most_trials
        queues = [self._missing(one, target, room) for one in self.own]
        turns = chain.from_iterable(zip_longest(*queues))
        trials = [one for one in turns if one is not None][:room]
        if not trials:
            trials = self._crossed()[:room]
        yield from trials

    def _missing(self, one: Tally, target: int, room: int) -> list[Trial]:
        """Return the looks one case still needs: new values first, then the rungs."""
        count = min(room, target - len(one.seen))
        if count > 0 and one.case.hash not in self.spent:
            if fresh := self._fresh(one, count):
                return [self._trial(one, values) for values in fresh]
            self.spent.add(one.case.hash)
        ranking, looks = one.best(), list[Trial]()
        for share, repeats in RUNGS:
            for own in ranking[: math.ceil(min(target, len(one.seen)) / share)]:
                short = repeats - one.looks(own)
                looks += [self._trial(one, one.seen[own][0])] * max(0, short)
            if looks:
                return looks
        return []

    def _fresh(self, one: Tally, count: int) -> list[Values]:
        """Return values nobody looked at on this case: known good ones first, then what the sampler suggests."""
        taken = {None, *(self._launched(one, values) for values, _ in one.seen.values())}
        most = len(self.launches) + PLANS

        def is_new(values: Values) -> bool:
            """Tell whether values launch what nothing seen or named so far launches; once told, they are taken."""
            if self.plan is not None and len(self.launches) >= most:
                return False
            launched = self._launched(one, values)
            is_fresh = launched not in taken
            taken.add(launched)
            return is_fresh

        found: dict[str, Values] = {}
        for values in self._good_guesses(one):
            if len(found) < count and is_new(values):
                found[key(values)] = values
        told = {own: (values, one.time(own)) for own, (values, _) in one.seen.items()}
        seed = int(digest(f"{self.brief.seed}:{one.case.hash}:{len(one.seen)}")[:15], 16)
        return [*found.values(), *ask(self.space, told, count - len(found), is_new, seed)]

    def _good_guesses(self, one: Tally) -> Iterator[Values]:
        """Yield what the parent has, what its author chose, and what was best nearby, all within the grid."""
        guesses: list[Values] = [
            self.parent.values_for(one.case.hash),
            first_values(self.parent.source),
            *(choice.values for choice in self.parent.choices),
        ]
        others = sorted(
            (other for other in self.tallies.values() if other.case.hash != one.case.hash and other.seen),
            key=lambda other: (distance(one.case, other.case), other.case.hash),
        )
        for other in others[:1]:
            guesses += [other.seen[own][0] for own in other.best()[:NEAREST]]
        kin = tally(one.case, self.brief.kin_screenings, self.space)
        guesses += [kin.seen[own][0] for own in kin.best()[:NEAREST]]
        guesses += self._taught(one.case)[:NEAREST]
        yield from (values for values in guesses if self.space.holds(values))

    def _taught(self, case: Case) -> list[Values]:
        """Return the values that lessons about other sizes name, the nearest size first."""
        here = [Shape.of(case)]
        told = [one for one in self.brief.lessons if one.values and one.teaching is Teaching.GAIN]
        told.sort(key=lambda lesson: apart(here, lesson.shapes))
        return [self.parent.values_for(case.hash) | lesson.values for lesson in told]

    def _launched(self, one: Tally, values: Values) -> str | None:
        """Return what values launch on a case, in one spelling; None if the source's own plan does not take them."""
        place = (one.case.hash, key(values))
        if place not in self.launches:
            self.launches[place] = self._run(one.case, values)
        return self.launches[place]

    def _run(self, case: Case, values: Values) -> str | None:
        if self.plan is None:
            return key(values)  # nobody knows: as different as they are
        try:
            found = run_plan(self.plan, case, values, self.brief.problem.device)
        except PlanFault:
            return None
        # Everything a kernel is compiled with and launched with is in the plan, `num_stages` and the like among it.
        return found.model_dump_json() if self.is_planned else key(values)

    def _alike(self, one: Tally, values: Values) -> str:
        """Return the key under which a case was looked at with values, or with others that launch the same."""
        own = key(values)
        if own in one.seen or (launched := self._launched(one, values)) is None:
            return own
        twins = (other for other, (seen, _) in one.seen.items() if self._launched(one, seen) == launched)
        return next(twins, own)

    def _trial(self, one: Tally, values: Values) -> Trial:
        return Trial(candidate_hash=self.parent.hash, values=values, case_hash=one.case.hash)

    def _crossed(self) -> list[Trial]:
        """Return one look at every case's winner on every other case: the rule for unseen shapes rests on them."""
        winners = {own: one.seen[own][0] for one in self.own for own in one.best()[:1]}
        return [
            self._trial(one, values)
            for one in self.own
            for values in winners.values()
            if self._alike(one, values) not in one.seen and self._launched(one, values) is not None
        ]

    def _table(self) -> tuple[ParamChoice, ...] | None:
        """Return the best values per case and the rule for unseen shapes; None if some case has none."""
        rows: dict[str, list[str]] = {}
        values: dict[str, Values] = {}
        for one in self.own:
            chosen = self._winner(one)
            if chosen is None:
                return None
            rows.setdefault(key(chosen), []).append(one.case.hash)
            values[key(chosen)] = chosen
        rule = self._rule(values)
        special = [
            ParamChoice(case_hashes=tuple(sorted(cases)), values=values[own])
            for own, cases in rows.items()
            if own != key(rule)
        ]
        return (*special, ParamChoice(values=rule))

    def _winner(self, one: Tally) -> Values | None:
        """Return the fastest values of a case; the parent's own if they are as good."""
        ranking = one.best()
        if not ranking:
            return None
        # The first of the ranking went through every rung: a lucky look has put nobody there.
        best, _ = one.seen[ranking[0]]
        kept = self.parent.values_for(one.case.hash)
        old, new = one.time(self._alike(one, kept)), one.time(ranking[0])
        return kept if old is not None and new is not None and old - new < INDIFFERENT else best

    def _rule(self, winners: dict[str, Values]) -> Values:
        """Return the winner that loses least over all cases, each by its weight; one that fails somewhere is out."""
        losses: dict[str, float] = {}
        for own, values in winners.items():
            times = [one.time(self._alike(one, values)) for one in self.own]
            if None not in times:
                bests = [one.time(one.best()[0]) for one in self.own]
                losses[own] = sum(
                    one.case.weight * (time - best)
                    for one, time, best in zip(self.own, times, bests, strict=True)
                    if time is not None and best is not None
                )
        if not losses:
            return first_values(self.parent.source)
        return winners[min(losses, key=lambda own: (losses[own], own))]

    def _proposal(self, choices: tuple[ParamChoice, ...]) -> Proposal:
        seen = sum(len(one.seen) for one in self.own)
        looks = sum(len(times) for one in self.own for _, times in one.seen.values())
        rows = "; ".join(
            ", ".join(f"{name}={value}" for name, value in row.values.items()) for row in choices
        )
        return Proposal(
            source=self.parent.source,
            backend=self.parent.backend,
            author=Author(name="tuner", detail=f"{looks} looks at {seen} sets of values"),
            note=f"values chosen by {looks} looks: {rows}",
            choices=choices,
        )


def tally(case: Case, screenings: Iterable[Screening], space: Space) -> Tally:
    """Return the looks at one case, of values that are in the grid."""
    seen: dict[str, tuple[Values, list[float | None]]] = {}
    for look in screenings:
        if look.case_hash == case.hash and space.holds(look.values):
            _, times = seen.setdefault(key(look.values), (dict(look.values), []))
            times.append(look.latency_us if look.status is Status.ACCEPTED else None)
    return Tally(case, seen)


def distance(one: Case, other: Case) -> float:
    """Return how far two cases are from each other: by the logarithms of their extents, and by type."""
    return Shape.of(one).distance(Shape.of(other))

"""What the tree does not keep: when things happened, how long they took, in which order, and what was noted.

One walk over the events. A kind of event that is not listed in `HEARD` still counts, by its kind and by the time that
passed before it; to make more of one, add a function and its line.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    Event,
    ExpansionAnswered,
    ExpansionAsked,
    ModelVerified,
    Noted,
    ProblemFound,
    Screened,
    SearchEscalated,
    WinnerTried,
)
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Profile, Status

Key = tuple[str, str]
"""Problem hash and candidate hash."""


@dataclass
class Trial:
    """One verdict, and what was decided on it."""

    key: Key
    kept: bool | None = None
    """The first decision on this verdict; None until there is one."""
    holder: str | None = None
    """Who held the problem's title when the next verdict came."""


@dataclass
class Chronicle:
    """A run in time."""

    tree: Tree = field(default_factory=Tree)
    """The state of the run after the last event."""
    first_at: datetime | None = None
    last_at: datetime | None = None
    starts: int = 0
    """How often the run was started; more than once if it was resumed."""
    busy_s: float = 0.0
    """Time between events, without the pauses before a resumption."""
    search_s: dict[str, float] = field(default_factory=dict)
    """Of it what was spent on each problem, by problem hash."""
    verify_s: float = 0.0
    """Of it what was spent on the whole model."""
    proposed_at: dict[Key, datetime] = field(default_factory=dict)
    judged_at: dict[Key, datetime] = field(default_factory=dict)
    """When the last verdict came."""
    trials: list[Trial] = field(default_factory=list)
    newest: dict[Key | str, Trial] = field(default_factory=dict)
    """The last trial of a candidate, and of a problem."""
    notes: list[str] = field(default_factory=list)
    strategies: dict[str, Counter[str]] = field(default_factory=dict)
    """By problem hash, how often each strategy asked for an expansion."""
    escalations: dict[str, list[str]] = field(default_factory=dict)
    """By problem hash, why the search turned to bolder means, each time."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Events by kind."""
    spent_s: dict[str, float] = field(default_factory=dict)
    """Time that passed before the events of a kind."""

    def when(self, key: Key) -> datetime | None:
        """Return when a candidate was judged, or proposed if it was not; None if nobody knows."""
        return self.judged_at.get(key) or self.proposed_at.get(key)

    def hear(self, event: Event) -> None:
        """Take in one more event."""
        kind = event.body.kind
        self.kinds[kind] += 1
        self.first_at = self.first_at or event.at
        if self.last_at is not None and kind != "run_started":
            self._spend(event.body, (event.at - self.last_at).total_seconds())
        self.last_at = event.at
        self.tree.apply(event.body)
        if kind in HEARD:
            HEARD[kind](self, event)

    def _spend(self, body: Body, seconds: float) -> None:
        """Count the time before an event: what was done in it led to the event."""
        spent = max(0.0, seconds)
        self.busy_s += spent
        self.spent_s[body.kind] = self.spent_s.get(body.kind, 0.0) + spent
        if isinstance(body, WinnerTried | ModelVerified):
            self.verify_s += spent
        elif problem := problem_of(body):
            self.search_s[problem] = self.search_s.get(problem, 0.0) + spent


def problem_of(body: Body) -> str | None:
    """Return the problem that an event speaks of, by its hash."""
    match body:
        case ProblemFound(problem=problem):
            return problem.hash
        case Evaluated(evaluation=about) | Screened(screening=about) | Compared(comparison=about):
            return about.problem_hash
        case Decided(decision=decision):
            return decision.problem_hash
        case ExpansionAsked(expansion=expansion) | ExpansionAnswered(expansion=expansion):
            return expansion.problem_hash
        case _:
            return getattr(body, "problem_hash", None)


def _started(run: Chronicle, _: Event) -> None:
    run.starts += 1


def _proposed(run: Chronicle, event: Event) -> None:
    assert isinstance(event.body, CandidateProposed)
    run.proposed_at.setdefault((event.body.problem_hash, event.body.candidate.hash), event.at)


def _evaluated(run: Chronicle, event: Event) -> None:
    assert isinstance(event.body, Evaluated)
    verdict = event.body.evaluation
    key = (verdict.problem_hash, verdict.candidate_hash)
    run.judged_at[key] = event.at
    if verdict.profile is Profile.QUICK and verdict.status is Status.ACCEPTED:
        return  # a look that proves nothing
    trial = Trial(key, holder=run.tree.best.get(verdict.problem_hash))
    run.trials.append(trial)
    run.newest[key] = run.newest[verdict.problem_hash] = trial


def _decided(run: Chronicle, event: Event) -> None:
    assert isinstance(event.body, Decided)
    decision = event.body.decision
    problem = decision.problem_hash
    if (own := run.newest.get((problem, decision.candidate_hash))) and own.kept is None:
        own.kept = decision.kept
    if last := run.newest.get(problem):
        last.holder = run.tree.best.get(problem)


def _noted(run: Chronicle, event: Event) -> None:
    assert isinstance(event.body, Noted)
    run.notes.append(event.body.text)


def _asked(run: Chronicle, event: Event) -> None:
    assert isinstance(event.body, ExpansionAsked)
    run.strategies.setdefault(event.body.expansion.problem_hash, Counter())[event.body.strategy] += 1


def _escalated(run: Chronicle, event: Event) -> None:
    assert isinstance(event.body, SearchEscalated)
    run.escalations.setdefault(event.body.problem_hash, []).append(event.body.reason)


HEARD: Mapping[str, Callable[[Chronicle, Event], None]] = {
    "run_started": _started,
    "candidate_proposed": _proposed,
    "evaluated": _evaluated,
    "decided": _decided,
    "noted": _noted,
    "expansion_asked": _asked,
    "search_escalated": _escalated,
}


def chronicle(events: Iterable[Event]) -> Chronicle:
    """Return a run in time, from its events."""
    run = Chronicle()
    for event in events:
        run.hear(event)
    return run


def without_times(tree: Tree) -> Chronicle:
    """Return what a tree alone tells: the order of the candidates, and no times."""
    run = Chronicle(tree=tree, starts=int(tree.started is not None))
    holders: dict[str, str] = {}
    for key, node in tree.nodes.items():
        if not node.evaluations:
            continue
        kept = node.decision.kept if node.decision else None
        if kept:
            holders[key[0]] = key[1]
        run.trials.append(Trial(key, kept, holders.get(key[0])))
    return run

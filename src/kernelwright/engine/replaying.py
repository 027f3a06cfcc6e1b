"""Repeating a run from its recording: the same replies, no key and no network, in a run folder of its own.

1. The recorded opening (problems, what the run was told of earlier ones) begins the new run, with the same settings.
2. Authors that are llms answer from the recorded exchanges; built-in authors work as ever.
3. The judge is live, and what it finds differently is told; or its recorded verdicts are given again, and the search
   makes the same decisions event by event.
4. Where the search asks what nobody recorded, it ends, and says why in one line.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from kernelwright.core import plugins
from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.config import RunConfig, recorded
from kernelwright.core.device import Device
from kernelwright.core.errors import CannotReplay
from kernelwright.core.events import (
    Body,
    ExpansionAnswered,
    KnowledgeGiven,
    LlmAsked,
    ModelRanked,
    Noted,
    ProblemFound,
    Profiled,
)
from kernelwright.core.exchange import Exchange
from kernelwright.core.expansion import Expansion
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node, Tree
from kernelwright.engine.app import Beginning, Watch, begin, unwatched
from kernelwright.engine.crew import LLM, NOBODY, places
from kernelwright.engine.foreign_runs import FoundRun
from kernelwright.engine.offering import languages
from kernelwright.engine.recorded_verdicts import RecordedVerdicts
from kernelwright.engine.rejudging import device_like
from kernelwright.engine.run import Member
from kernelwright.engine.same_bench import rules_of
from kernelwright.engine.seeds import Seeds, given_of, is_hurried
from kernelwright.engine.service import Show
from kernelwright.hardware.detect import usable_cores
from kernelwright.store.blobs import Blobs
from kernelwright.store.disk import disk_errors, make_folder
from kernelwright.store.journal import Journal
from kernelwright.store.locate import runs_folder

OPENING = (ModelRanked, ProblemFound, KnowledgeGiven, Noted)
SEEDS = ("seed", "codegen")
"""How the authors of kernels are called that come with the package, or are written from a captured region."""
UNRECORDED = ("command",)
"""Authors whose answers are not kept in words."""


class Recorded:
    """What a recorded run said, as the run that repeats it sees it."""

    def __init__(self, bodies: Sequence[Body], *, recorded_verdicts: bool = True) -> None:
        read = [body for body in bodies if isinstance(body, Profiled)] if recorded_verdicts else []
        self._profiles = {(one.problem_hash, one.candidate_hash): one for one in read}
        answered = [body.expansion for body in bodies if isinstance(body, ExpansionAnswered)]
        self._order = {_key(one): place for place, one in reversed(list(enumerate(answered)))}
        # Any: an author of a recording knows how much of it is left, and no other author does.
        self.authors: list[Any] = []

    @property
    def total(self) -> int:
        """Return how many replies were recorded."""
        return sum(one.llm.total for one in self.authors)

    @property
    def left(self) -> int:
        """Return how many of them nobody has asked for."""
        return sum(one.llm.left for one in self.authors)

    @property
    def differing(self) -> int:
        """Return how many were given to a prompt with other words."""
        return sum(one.llm.differing for one in self.authors)

    @property
    def is_used_up(self) -> bool:
        """Tell whether every recorded reply was given; a run that asked no llm has none and goes on."""
        return self.total > 0 and self.left == 0

    def order(self, expansion: Expansion) -> int:
        """Return the place an expansion's answer had; one that was never answered comes last."""
        return self._order.get(_key(expansion), len(self._order))

    def profile(self, node: Node) -> Profiled | None:
        """Return the counters that were read of a candidate, where its verdicts are recorded too."""
        return self._profiles.get((node.problem_hash, node.candidate.hash))


def _key(expansion: Expansion) -> str:
    """Return an expansion without its problem, whose device may be another one here."""
    return expansion.model_dump_json(exclude={"problem_hash"})


@dataclass(frozen=True)
class RecordedSeeds(Seeds):
    """The baselines and seeds that a recorded run began with, whatever the package holds by now."""

    before: Tree

    def baselines(self, problem: Problem) -> list[Candidate]:
        """Return what was judged before anything else."""
        if self.given is not None:
            return [self.given]
        return self._recorded(problem, super().baselines(problem))

    def late_baseline(self, problem: Problem) -> Candidate | None:
        """Return the baseline that was held against the best at the end, if one was."""
        late = super().late_baseline(problem)
        return next(iter(self._recorded(problem, [late] if late else [])), None)

    def first(self, problem: Problem) -> list[Candidate]:
        """Return the seeds in the order they were judged in."""
        roots = self._roots(problem)
        return [one for one in roots if one.origin is Origin.AUTHOR and one.author.name in SEEDS]

    def _recorded(self, problem: Problem, wanted: Sequence[Candidate]) -> list[Candidate]:
        known = {one.backend: one for one in self._roots(problem) if one.origin is Origin.BASELINE}
        return [known[one.backend] for one in wanted if one.backend in known]

    def _roots(self, problem: Problem) -> list[Candidate]:
        cases = [case.hash for case in problem.cases]
        keys = [
            key for key, one in self.before.problems.items() if [case.hash for case in one.cases] == cases
        ]
        return [node.candidate for (owner, _), node in self.before.nodes.items() if owner in keys]


@dataclass(frozen=True)
class Repeated:
    """One candidate of the recorded run, and what became of it now."""

    problem: Problem
    before: Node
    now: Node | None
    """None if it was not proposed again."""

    @property
    def is_same(self) -> bool:
        """Tell whether it ended as it did."""
        return self.now is not None and ended(self.now) == ended(self.before)


@dataclass(frozen=True)
class Replayed:
    """What a replay came to."""

    folder: Path
    """Of the new run."""
    replies: int
    """Recorded replies that were given."""
    left: int
    """Those nobody asked for."""
    differing: int
    """Those that were given to a prompt with other numbers."""
    candidates: tuple[Repeated, ...]
    """Every candidate of the recorded run."""
    ended: str
    """Why it stopped."""


def ended(node: Node) -> str:
    """Return how a candidate ended: the judge's status, and whether it was kept."""
    status = node.evaluations[-1].status.value if node.evaluations else "not judged"
    decided = "" if node.decision is None else ", kept" if node.decision.kept else ", reverted"
    return status + decided


def replay(
    journal: Journal,
    found: FoundRun,
    show: Show,
    watch: Watch = unwatched,
    *,
    recorded_verdicts: bool = False,
) -> Replayed:
    """Repeat a run from its recorded replies in a new run folder."""
    begun, bodies, before = datetime.now(UTC), list(journal.bodies()), journal.tree()
    folder, home = found.folder, found.home
    if before.started is None or folder is None:
        missing = "the journal has no beginning" if folder else "its texts lie on another machine"
        raise CannotReplay(journal.run_id, missing, "Copy the whole run folder here, `blobs` included.")
    config = _settings(before.started.config, journal.run_id)
    found.refuse_running(config)
    if recorded_verdicts and len(rules := rules_of(before)) > 1:
        problem = f"its verdicts are by versions {' and '.join(rules)} of the judge's rules"
        raise CannotReplay(journal.run_id, problem, "Replay it without --recorded-verdicts.")
    recording = Recorded(bodies, recorded_verdicts=recorded_verdicts)
    crew = _crew(config, bodies, Blobs(folder / "blobs"), recording)
    device = before.started.device if recorded_verdicts else device_like(before.started.device)
    opening = _opening(bodies)
    with disk_errors(runs_folder(home)):
        make_folder(runs_folder(home))
    beginning = Beginning(
        begun,
        device,
        RecordedSeeds(
            languages(config, device),
            config.threads or usable_cores(),
            before,
            given=given_of(config, before),
            hurried=is_hurried(config),
        ),
        tuple(_moved(one, device) for one in opening),
        crew,
        recording=recording,
        judge=RecordedVerdicts(bodies) if recorded_verdicts else None,
        texts=_documents(opening, Blobs(folder / "blobs")),
    )
    with plugins.using(config.plugins):
        made = begin(config, home, beginning, show, watch)
    after = Journal.open(made).tree()
    return Replayed(
        folder=made,
        replies=recording.total - recording.left,
        left=recording.left,
        differing=recording.differing,
        candidates=tuple(_compared(before, after)),
        ended=after.ended.reason if after.ended else "it did not end",
    )


def _settings(given: dict[str, object], run_id: str) -> RunConfig:
    """Return a run's settings for its search alone: the whole model is not touched, nothing is shelved."""
    changes = {
        "replays": run_id,
        "model": None,
        "journal_url": None,
        "lessons": False,
        "target_speedup": None,
    }
    return recorded(given).model_copy(update=changes)


def _crew(config: RunConfig, bodies: Sequence[Body], blobs: Blobs, recording: Recorded) -> tuple[Member, ...]:
    """Return the crew of a run; each llm has the replies that were given to it."""
    names = tuple(name for name in (config.author, *config.beside) if name != NOBODY)
    said: dict[int, list[Exchange]] = defaultdict(list)
    for body in bodies:
        if isinstance(body, LlmAsked):
            said[body.expansion.worker].append(body.exchange)
    members = []
    for place, name in enumerate(places(config, names) if names else ()):
        kind, _, detail = name.partition(":")
        if kind in UNRECORDED:
            problem = f"the answers of {name!r} are not recorded"
            raise CannotReplay(
                str(config.replays),
                problem,
                f"`kernelwright rejudge {config.replays}` judges its winners again.",
            )
        file = plugins.load("agents", kind)
        if kind == LLM:
            agent = file.replayed(detail, said[place], lambda key: blobs.get(key).decode())
            recording.authors.append(agent)
        else:
            agent = file.author(detail)
        members.append(Member(place, name, agent))
    return tuple(members)


def _opening(bodies: Sequence[Body]) -> list[Body]:
    """Return what the recorded run began with: the same number of events, since whatever is drawn depends on it."""
    return list(takewhile(lambda body: isinstance(body, OPENING), bodies[1:]))


def _moved(body: Body, device: Device) -> Body:
    """Return an event of the opening on this machine's device."""
    if not isinstance(body, ProblemFound):
        return body
    return ProblemFound(problem=body.problem.model_copy(update={"device": device}))


def _documents(opening: Sequence[Body], blobs: Blobs) -> tuple[bytes, ...]:
    """Return the texts that the opening names."""
    given = [one for body in opening if isinstance(body, KnowledgeGiven) for one in body.documents]
    return tuple(blobs.get(one.content_hash) for one in given)


def _compared(before: Tree, after: Tree) -> Iterable[Repeated]:
    """Yield every candidate of the recorded run with its twin in the new one."""
    cases = {tuple(case.hash for case in one.cases): key for key, one in after.problems.items()}
    for (owner, own), node in before.nodes.items():
        problem = before.problems[owner]
        key = cases.get(tuple(case.hash for case in problem.cases), "")
        yield Repeated(problem, node, after.nodes.get((key, own)))

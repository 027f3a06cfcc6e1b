"""The `Tree`: problems, candidates, verdicts and the best so far, as a pure fold over events."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kernelwright.core.candidate import Candidate, Origin
from kernelwright.core.counters import CounterProfile
from kernelwright.core.events import (
    Analysed,
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    ExpansionAnswered,
    ExpansionAsked,
    KnowledgeGiven,
    LessonLearnt,
    LlmAsked,
    ModelRanked,
    ModelVerified,
    Noted,
    ProblemEnded,
    ProblemFound,
    Profiled,
    Remarked,
    RunEnded,
    RunStarted,
    Screened,
    SearchEscalated,
    WinnerTried,
)
from kernelwright.core.exchange import Exchange
from kernelwright.core.expansion import Expansion
from kernelwright.core.lesson import Lesson
from kernelwright.core.problem import Problem
from kernelwright.core.remark import Remark
from kernelwright.core.verdict import Comparison, Decision, Evaluation, Profile, Screening, Status


@dataclass
class Node:
    """A candidate and everything the judge said of it."""

    candidate: Candidate
    problem_hash: str
    seq: int
    """Number of its proposal among the candidates: the experiment's number."""
    evaluations: list[Evaluation] = field(default_factory=list)
    screenings: list[Screening] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    """Comparisons in which it was the challenger."""
    profiles: list[CounterProfile] = field(default_factory=list)
    """What a profiler found of it."""
    decision: Decision | None = None
    children: list[str] = field(default_factory=list)
    expansion: Expansion | None = None
    """What it is an answer to; None for a seed, a baseline or a submission."""
    analysis: Analysed | None = None
    """What an llm said it waits for; None if none was asked."""
    remark: Remark | None = None
    """What its author concluded from it."""

    @property
    def is_confirmed(self) -> bool:
        """Tell whether its title rests on the full profile and on the comparison that confirmed it."""
        if self.decision is None or not self.evaluations or self.candidate.origin is Origin.BASELINE:
            return False
        last = self.evaluations[-1]
        is_whole = (last.status, last.profile) == (Status.ACCEPTED, Profile.SHIP)
        return is_whole and self.decision.kept and self.decision.evaluation_hash == last.hash


@dataclass
class Quest:
    """How the search of one problem stands."""

    pending: list[Expansion] = field(default_factory=list)
    """Asked for and not answered yet, oldest first."""
    barren: list[Expansion] = field(default_factory=list)
    """Answered with nothing new."""
    asked: int = 0
    """Expansions asked for."""
    looks: int = 0
    """Looks taken for the oldest pending one."""
    reverts: int = 0
    """Candidates of authors in a row that were not kept."""
    idle: int = 0
    """Expansions in a row that were answered with nothing new."""
    level: int = 0
    """How often the search was escalated."""
    left: str = ""
    """Language that the search has left alone; empty for none."""
    heard: int = 0
    """Lessons of the run that were known when it was last worked on or given up."""
    ended: ProblemEnded | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    """What language models were asked since the last of their kernels was kept."""

    def apply(self, body: Body) -> None:
        """Fold one more event of the problem in."""
        match body:
            case ExpansionAsked(expansion=expansion):
                self.pending.append(expansion)
                self.asked, self.ended = self.asked + 1, None
            case ExpansionAnswered(expansion=expansion, cancelled=True):
                self.pending.remove(expansion)
                self.looks = 0
            case ExpansionAnswered(expansion=expansion, candidates=candidates):
                self.pending.remove(expansion)
                self.looks = 0
                self.idle = 0 if candidates else self.idle + 1
                if not candidates:
                    self.barren.append(expansion)
            case SearchEscalated(level=level, left=left):
                self.level, self.left, self.reverts, self.idle = level, left, 0, 0
            case ProblemEnded():
                self.ended = body
            case _:
                pass


@dataclass
class Tree:
    """The state of a run."""

    started: RunStarted | None = None
    ended: RunEnded | None = None
    problems: dict[str, Problem] = field(default_factory=dict)
    nodes: dict[tuple[str, str], Node] = field(default_factory=dict)
    """Node by (problem hash, candidate hash): the same source may serve two problems."""
    titles: dict[str, list[str]] = field(default_factory=dict)
    """Candidate hashes by problem hash that were kept and not reverted since, oldest first: the first is the baseline,
    the last is the best. Nothing is undone on disk."""
    quests: dict[str, Quest] = field(default_factory=dict)
    """How the search of every problem stands, by problem hash."""
    lessons: list[Lesson] = field(default_factory=list)
    """What this run has learnt, in order."""
    given: KnowledgeGiven = field(default_factory=KnowledgeGiven)
    """What it was given when it began."""
    exchanges: list[Exchange] = field(default_factory=list)
    """What language models were asked and answered, in order."""
    gains: list[tuple[str, str, tuple[Exchange, ...]]] = field(default_factory=list)
    """Problem and candidate of every kept kernel of a language model, with what was asked since the one before."""
    ranked: ModelRanked | None = None
    tried: dict[str, WinnerTried] = field(default_factory=dict)
    """By problem hash, what came of putting its winner into the model, in that order."""
    verified: ModelVerified | None = None
    events: int = 0
    steps: int = 0
    """Events that are steps of the search: not those that tell how it was interrupted."""

    def apply(self, body: Body) -> None:
        """Fold one more event in."""
        self.events += 1
        self.steps += not isinstance(body, RunEnded | Noted)
        match body:
            # The commonest first: a long run is mostly screenings.
            case Screened(screening=screening):
                self._node(screening.problem_hash, screening.candidate_hash).screenings.append(screening)
                self.quests.setdefault(screening.problem_hash, Quest()).looks += 1
            case CandidateProposed():
                self._add(body)
                self.ended = None  # something was submitted after the end: the run is open again
            case Evaluated(evaluation=evaluation):
                self._node(evaluation.problem_hash, evaluation.candidate_hash).evaluations.append(evaluation)
            case Compared(comparison=comparison):
                self._node(comparison.problem_hash, comparison.challenger_hash).comparisons.append(comparison)
            case Profiled(problem_hash=key, candidate_hash=own, profile=profile):
                self._node(key, own).profiles.append(profile)
            case Decided(decision=decision):
                self._decide(decision)
            case ExpansionAsked(expansion=expansion) | ExpansionAnswered(expansion=expansion):
                self._quest(expansion.problem_hash, body)
                for own in body.candidates if isinstance(body, ExpansionAnswered) else ():
                    self._node(expansion.problem_hash, own).expansion = expansion
            case SearchEscalated(problem_hash=key) | ProblemEnded(problem_hash=key):
                self._quest(key, body)
            case ProblemFound(problem=problem):
                self.problems[problem.hash] = problem
                self.quests.setdefault(problem.hash, Quest())
            case LlmAsked(exchange=exchange, expansion=expansion):
                self.exchanges.append(exchange)
                self.quests.setdefault(expansion.problem_hash, Quest()).exchanges.append(exchange)
            case Analysed(problem_hash=key):
                self._node(key, body.candidate_hash).analysis = body
            case Remarked(remark=remark):
                self._node(remark.problem_hash, remark.candidate_hash).remark = remark
            case LessonLearnt(lesson=lesson):
                self.lessons.append(lesson)
            case KnowledgeGiven():
                self.given = body
            case ModelRanked():
                self.ranked = body
            case WinnerTried(problem_hash=key):
                self.tried.pop(key, None)
                self.tried[key] = body
            case ModelVerified():
                self.verified = body
            case RunStarted():
                self.started, self.ended = body, None
            case RunEnded():
                self.ended = body
            case _:
                pass

    @property
    def best(self) -> dict[str, str]:
        """Return the candidate hash of the best by problem hash."""
        return {problem: held[-1] for problem, held in self.titles.items() if held}

    def _quest(self, problem_hash: str, body: Body) -> None:
        quest = self.quests[problem_hash]
        quest.apply(body)
        quest.heard = len(self.lessons)

    def _decide(self, decision: Decision) -> None:
        """Give the title, or take it away: it falls back to whoever held it before."""
        node = self._node(decision.problem_hash, decision.candidate_hash)
        if node.candidate.origin is Origin.AUTHOR and (quest := self.quests.get(decision.problem_hash)):
            # What loses its title later was counted when it was first decided on.
            quest.reverts = 0 if decision.kept else quest.reverts + (node.decision is None)
            if decision.kept and node.decision is None and node.expansion is not None and quest.exchanges:
                self.gains.append((node.problem_hash, node.candidate.hash, tuple(quest.exchanges)))
                quest.exchanges = []
        node.decision = decision
        held = self.titles.setdefault(decision.problem_hash, [])
        if decision.kept and decision.candidate_hash in held:
            del held[held.index(decision.candidate_hash) + 1 :]
        elif decision.kept:
            held.append(decision.candidate_hash)
        elif decision.candidate_hash in held:
            held.remove(decision.candidate_hash)

    def _add(self, body: CandidateProposed) -> None:
        key = (body.problem_hash, body.candidate.hash)
        if key in self.nodes:
            return
        self.nodes[key] = Node(body.candidate, body.problem_hash, seq=len(self.nodes))
        for parent in body.candidate.parents:
            if above := self.nodes.get((body.problem_hash, parent)):
                above.children.append(body.candidate.hash)

    def _node(self, problem_hash: str, candidate_hash: str) -> Node:
        try:
            return self.nodes[problem_hash, candidate_hash]
        except KeyError:
            raise ValueError(
                f"event {self.events - 1} speaks of candidate {candidate_hash[:12]}, never proposed"
            ) from None


def fold(bodies: Iterable[Body]) -> Tree:
    """Return the tree that a sequence of events builds."""
    tree = Tree()
    for body in bodies:
        tree.apply(body)
    return tree

"""The `Tree`: problems, candidates, verdicts and the best so far, as a pure fold over events."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kernelwright.core.candidate import Candidate
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    LessonLearnt,
    ModelRanked,
    ModelVerified,
    ProblemFound,
    RunEnded,
    RunStarted,
    Screened,
    WinnerTried,
)
from kernelwright.core.lesson import Lesson
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Comparison, Decision, Evaluation, Screening


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
    decision: Decision | None = None
    children: list[str] = field(default_factory=list)


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
    lessons: list[Lesson] = field(default_factory=list)
    ranked: ModelRanked | None = None
    tried: dict[str, WinnerTried] = field(default_factory=dict)
    """By problem hash, what came of putting its winner into the model, in that order."""
    verified: ModelVerified | None = None
    events: int = 0

    def apply(self, body: Body) -> None:
        """Fold one more event in."""
        self.events += 1
        match body:
            # The commonest first: a long run is mostly screenings.
            case Screened(screening=screening):
                self._node(screening.problem_hash, screening.candidate_hash).screenings.append(screening)
            case CandidateProposed():
                self._add(body)
            case Evaluated(evaluation=evaluation):
                self._node(evaluation.problem_hash, evaluation.candidate_hash).evaluations.append(evaluation)
            case Compared(comparison=comparison):
                self._node(comparison.problem_hash, comparison.challenger_hash).comparisons.append(comparison)
            case Decided(decision=decision):
                self._node(decision.problem_hash, decision.candidate_hash).decision = decision
                self._decide(decision)
            case ProblemFound(problem=problem):
                self.problems[problem.hash] = problem
            case LessonLearnt(lesson=lesson):
                self.lessons.append(lesson)
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

    def _decide(self, decision: Decision) -> None:
        """Give the title, or take it away: it falls back to whoever held it before."""
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

"""Searching a recorded landscape: any strategy and any author, no device, every decision the same for the same seed.

1. The baseline and the roots are judged, as a run begins.
2. The strategy is asked for expansions until every worker has one; those under way are pending to it.
3. The oldest is answered: looks the author wants are screenings of the landscape, proposals are judged and compared.
4. Each step is events, and the whole state is their fold: a simulation can be continued from any prefix of them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp

from kernelwright.core.brief import Answer, Brief, Proposal
from kernelwright.core.candidate import Author, Candidate, Origin
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    Noted,
    ProblemFound,
    Screened,
)
from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.landscape import Landscape
from kernelwright.core.normal import key_of, known_keys
from kernelwright.core.ports import Agent, Strategy
from kernelwright.core.recall import brief_of
from kernelwright.core.search import rng_at, speeds
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Decision, Status
from kernelwright.engine import gate
from kernelwright.testing.recorded_judge import RecordedJudge

BARREN = "no proposal: "
MOST_ROUNDS = 200
"""Times an author may ask for looks before it must answer; a bound, not a budget."""


class Wanderer:
    """An author that knows nothing: it takes one step of the landscape from the parent it is given.

    Which step a diagnosis stands for is drawn once for each parent. Two parents are crossed value by value, and a
    clean start lands anywhere.
    """

    def __init__(self, landscape: Landscape, seed: int) -> None:
        self.landscape, self.seed = landscape, seed
        self.keys = [key_of(landscape.candidate(place)) for place in range(len(landscape.spots))]

    def propose(self, brief: Brief) -> Answer:
        """Return one spot that the tree does not hold."""
        known = set(brief.known)
        fresh = {place for place, key in enumerate(self.keys) if key not in known}
        first = [self._place(parent) for parent in brief.parents]
        rng = random.Random(digest(canonical_json([self.seed, brief.seed])))
        place = self._step(first, fresh, brief, rng)
        if place is None:
            return Answer(reason="nothing new is one step away")
        spot = self.landscape.candidate(place)
        return Answer(
            proposals=(
                Proposal(
                    source=spot.source,
                    backend=spot.backend,
                    choices=spot.choices,
                    author=Author(name="wanderer", detail=str(place)),
                ),
            )
        )

    def _place(self, candidate: Candidate) -> int:
        place = self.landscape.find(candidate, "")
        if place is None:
            raise ValueError(f"candidate {candidate.hash[:12]} is not in the landscape")
        return place

    def _step(self, parents: Sequence[int], fresh: set[int], brief: Brief, rng: random.Random) -> int | None:
        if not parents or brief.memory is Memory.CLEAN:
            return rng.choice(sorted(fresh)) if fresh else None
        if len(parents) > 1 and (crossed := [one for one in sorted(fresh) if self._mixes(one, parents)]):
            return rng.choice(crossed)
        near = list(self.landscape.neighbours[parents[0]])
        random.Random(f"{self.seed}:{parents[0]}").shuffle(near)
        turn = brief.diagnosis % len(near) if near else 0
        return next((one for one in near[turn:] + near[:turn] if one in fresh), None)

    def _mixes(self, place: int, parents: Sequence[int]) -> bool:
        spots = [self.landscape.spots[parent] for parent in parents]
        spot = self.landscape.spots[place]
        return spot.source in {one.source for one in spots} and all(
            any(one.values.get(name) == value for one in spots) for name, value in spot.values.items()
        )


@dataclass(frozen=True)
class Step:
    """Where a simulation stood after a decision."""

    decisions: int
    """Proposals decided, roots included."""
    seconds: float
    """Simulated seconds of building, looking and proving."""
    speed: float
    """Baseline time over the title holder's."""
    kernel_speed: float
    """Baseline time over that of the best kernel accepted so far, whether it beats the baseline or not; 0 for none."""


@dataclass
class Simulation:
    """One search of a landscape."""

    landscape: Landscape
    strategy: Strategy
    author: Agent
    seed: int
    workers: int = 1
    tree: Tree = field(default_factory=Tree)
    bodies: list[Body] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    pending: list[Expansion] = field(default_factory=list)
    barren: list[Expansion] = field(default_factory=list)
    seconds: float = 0.0
    """Simulated seconds so far."""

    def __post_init__(self) -> None:
        """Continue from the events given, or begin."""
        self.judge = RecordedJudge(self.landscape)
        self.problem = self.landscape.problem
        given, self.bodies = self.bodies, []
        for body in given:
            self.record(body)
            if isinstance(body, Noted) and body.text.startswith(BARREN):
                self.barren.append(Expansion.model_validate_json(body.text.removeprefix(BARREN)))
        if not given:
            self.record(ProblemFound(problem=self.problem))
            self.challenge(self.landscape.candidate(self.landscape.baseline))
            for place in self.landscape.roots:
                self.challenge(self.landscape.candidate(place))

    def record(self, body: Body) -> None:
        """Fold one more event in; a decision ends a step."""
        match body:
            case Evaluated(evaluation=verdict):
                self.seconds += verdict.seconds
            case Screened(screening=look):
                node = self.tree.nodes[look.problem_hash, look.candidate_hash]
                self.seconds += self.judge.look_seconds(node, look)
            case _:
                pass
        self.bodies.append(body)
        self.tree.apply(body)
        if isinstance(body, Decided):
            self.steps.append(self._step(body.decision))

    def _step(self, decision: Decision) -> Step:
        measured = speeds(self.tree, self.problem.hash)
        best = self.tree.best.get(self.problem.hash)
        held = measured.certified(best) if best else None
        kernel = self.steps[-1].kernel_speed if self.steps else 0.0
        node = self.tree.nodes[self.problem.hash, decision.candidate_hash]
        own = measured.certified(decision.candidate_hash)
        if own is not None and node.candidate.origin is Origin.AUTHOR:
            kernel = max(kernel, exp(own))
        return Step(len(self.steps) + 1, self.seconds, 1.0 if held is None else exp(held), kernel)

    def challenge(self, candidate: Candidate) -> None:
        """Judge a candidate and, if it is accepted, compare it with the best so far."""
        self.record(CandidateProposed(problem_hash=self.problem.hash, candidate=candidate))
        verdict = self.judge.evaluate(self.problem, candidate)
        self.record(Evaluated(evaluation=verdict))
        best = self.tree.best.get(self.problem.hash)
        if best is None:
            self.record(Decided(decision=gate.first_of_problem(verdict)))
        elif verdict.status is not Status.ACCEPTED:
            self.record(Decided(decision=gate.rejected(verdict)))
        else:
            incumbent = self.tree.nodes[self.problem.hash, best].candidate
            found = self.judge.compare(self.problem, incumbent, candidate)
            self.record(Compared(comparison=found))
            self.record(Decided(decision=gate.decide(verdict, found)))

    def allowance(self) -> Allowance:
        """Return the room for expansions now."""
        return Allowance(
            problem_hash=self.problem.hash,
            expansions=self.workers - len(self.pending),
            pending=tuple(self.pending),
            barren=tuple(self.barren),
        )

    def advance(self) -> bool:
        """Ask the strategy, answer the oldest expansion; tell whether there was one."""
        allowance = self.allowance()
        self.pending += self.strategy.choose(self.tree, allowance, rng_at(self.tree, allowance, self.seed))
        if not self.pending:
            return False
        expansion = self.pending[0]
        answer = self._answer(expansion)
        known, parents = known_keys(self.tree, self.problem.hash), expansion.parents
        fresh = [one.candidate(self.problem, parents) for one in answer.proposals]
        fresh = [candidate for candidate in fresh if key_of(candidate) not in known]
        for candidate in fresh:
            self.challenge(candidate)
        self.pending.pop(0)
        if not fresh:
            self.barren.append(expansion)
            self.record(Noted(text=BARREN + expansion.model_dump_json()))
        return True

    def _answer(self, expansion: Expansion) -> Answer:
        """Return the author's answer, its looks taken first."""
        for _ in range(MOST_ROUNDS):
            answer = self.author.propose(brief_of(self.tree, expansion, self.seed + self.tree.events))
            for trial in answer.trials:
                node = self.tree.nodes[self.problem.hash, trial.candidate_hash]
                self.record(Screened(screening=self.judge.screen(self.problem, node, trial)))
            if answer.proposals or not answer.trials:
                return answer
        return Answer(reason=f"asked for looks {MOST_ROUNDS} times without an answer")

    def run(self, decisions: int, patience: int = 40) -> "Simulation":
        """Go on until so many decisions are made, or so many expansions in a row gave nothing."""
        while len(self.steps) < decisions:
            before = len(self.steps)
            idle = 0
            while len(self.steps) == before and idle < patience:
                if not self.advance():
                    return self
                idle += 1
            if len(self.steps) == before:
                return self
        return self

    def best_at(self, decisions: int) -> float:
        """Return the speed of the best kernel after so many decisions."""
        return self.steps[min(decisions, len(self.steps)) - 1].kernel_speed

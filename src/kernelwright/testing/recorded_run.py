"""The engine's own search on a recorded landscape: no device, no disk, every decision the same for the same seed.

The loop is that of every run; the judge, the seeds and the journal are recorded ones. A search goes on from any append
of another one, as a run that was killed does.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

from kernelwright.core.brief import Answer, Brief, Proposal
from kernelwright.core.candidate import Author, Candidate, Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.events import Body, Evaluated, ProblemFound, Screened
from kernelwright.core.expansion import Allowance, Memory
from kernelwright.core.frozen import canonical_json, digest
from kernelwright.core.landscape import Landscape
from kernelwright.core.normal import key_of
from kernelwright.core.ports import Agent
from kernelwright.core.search import speeds
from kernelwright.core.tree import Tree
from kernelwright.engine.loop import search
from kernelwright.engine.run import Run
from kernelwright.testing.recorded_judge import RecordedClient, RecordedJudge, RecordedSeeds

FOR_EVER = 10**9
NOWHERE = Path("/nonexistent/recorded")
"""Folder of a run that writes nothing."""


def settings(**changes: Any) -> RunConfig:  # Any: the settings check their own types
    """Return the settings of a search that ends by what is asked of it, never by time or by losing heart."""
    usual = {"budget_s": float(FOR_EVER), "problem_s": float(FOR_EVER), "patience": FOR_EVER, "workers": 1}
    return RunConfig.model_validate(usual | changes)


@dataclass(frozen=True)
class Step:
    """Where a search stood after a verdict."""

    verdicts: int
    """Candidates judged so far, baseline and roots included."""
    seconds: float
    """Recorded seconds of building, looking and proving."""
    kernel_speed: float
    """Baseline time over that of the best kernel accepted so far, whether it beats the baseline or not; 0 for none."""


@dataclass
class RecordedRun:
    """One search of a landscape."""

    landscape: Landscape
    author: Agent
    config: RunConfig
    bodies: list[Body] = field(default_factory=list)
    """Events so far; those given are where it goes on."""
    ends: list[int] = field(default_factory=list)
    """How many events there were after every append."""
    folder: Path = NOWHERE
    """Where prompts and replies go; only an llm needs one."""

    def __post_init__(self) -> None:
        """Begin, or take up the events given."""
        problem, tree = self.landscape.problem, Tree()
        kernels = [one for one in self.landscape.sources.values() if one.origin is Origin.AUTHOR]
        seeds = RecordedSeeds(tuple(dict.fromkeys(one.backend for one in kernels)), 1, self.landscape)
        given, self.bodies = self.bodies, []
        self.run = Run(
            self.config,
            problem.device,
            1,
            self.folder,
            self._record,
            tree,
            lambda _: None,
            seeds,
            author=self.author,
        )
        self._record(given or [ProblemFound(problem=problem)])

    def _record(self, bodies: Sequence[Body]) -> None:
        for body in bodies:
            self.bodies.append(body)
            self.run.tree.apply(body)
        self.ends.append(len(self.bodies))

    @property
    def tree(self) -> Tree:
        """Return how it stands."""
        return self.run.tree

    def search(self) -> "RecordedRun":
        """Let the engine search until its settings say it is over."""
        search(self.run, RecordedClient(RecordedJudge(self.landscape), self.tree))
        return self

    def room(self, expansions: int = 1) -> Allowance:
        """Return the room a strategy would be told of now."""
        key = self.landscape.problem.hash
        quest = self.tree.quests[key]
        return Allowance(
            problem_hash=key,
            expansions=expansions,
            pending=tuple(quest.pending),
            barren=tuple(quest.barren),
        )

    @cached_property
    def steps(self) -> list[Step]:
        """Return where the search stood after every verdict, once it is over."""
        judge, tree, seconds, best = RecordedJudge(self.landscape), Tree(), 0.0, 0.0
        found: list[Step] = []
        for body in self.bodies:
            if isinstance(body, Screened):
                look = body.screening
                seconds += judge.look_seconds(tree.nodes[look.problem_hash, look.candidate_hash], look)
            tree.apply(body)
            if isinstance(body, Evaluated):
                verdict = body.evaluation
                seconds += verdict.seconds
                node = tree.nodes[verdict.problem_hash, verdict.candidate_hash]
                own = speeds(tree, verdict.problem_hash).certified(verdict.candidate_hash)
                if own is not None and node.candidate.origin is Origin.AUTHOR:
                    best = max(best, exp(own))
                found.append(Step(len(found) + 1, seconds, best))
        return found

    def best_at(self, verdicts: int) -> float:
        """Return the speed of the best kernel after so many verdicts."""
        return self.steps[min(verdicts, len(self.steps)) - 1].kernel_speed


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
        # Several expansions asked for at once come with one seed; what is known grows with every answer.
        rng = random.Random(digest(canonical_json([self.seed, brief.seed, len(known)])))
        place = self._step(first, fresh, brief, rng)
        if place is None:
            return Answer(reason="nothing new is one step away")
        spot = self.landscape.candidate(place)
        author = Author(name="wanderer", detail=str(place))
        proposal = Proposal(source=spot.source, backend=spot.backend, choices=spot.choices, author=author)
        return Answer(proposals=(proposal,))

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

"""Grows trees, node by node or in a journal, for tests of what is read out of them."""

import math
import os
import signal

from kernelwright.core.events import (
    CandidateProposed,
    Compared,
    Decided,
    Evaluated,
    ProblemFound,
)
from kernelwright.core.expansion import Allowance
from kernelwright.core.search import rng_at, speeds
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import Decision, Outcome, Status
from kernelwright.store.journal import Journal


class Grower:
    """Grows a tree node by node, each with a verdict of its own."""

    def __init__(self, make):
        self.make, self.problem, self.tree = make, make.problem(), Tree()
        self.tree.apply(ProblemFound(problem=self.problem))
        self.base = make.baseline()
        self.judged(self.base, 100.0)

    def propose(self, name, *parents, **changes):
        source = changes.pop("source", f"int kernel_fn(); // {name}\nint {name};")
        candidate = self.make.candidate(
            source, parents=tuple(one.hash for one in parents), note=name, **changes
        )
        self.tree.apply(CandidateProposed(problem_hash=self.problem.hash, candidate=candidate))
        return candidate

    def judged(self, candidate, time_us=None, *, failed=None, status=Status.WRONG):
        if (self.problem.hash, candidate.hash) not in self.tree.nodes:
            self.tree.apply(CandidateProposed(problem_hash=self.problem.hash, candidate=candidate))
        changes = {"status": status} if failed else {"timing": self.make.timing(self.problem, time_us)}
        verdict = self.make.evaluation(candidate, self.problem, failed=failed, **changes)
        self.tree.apply(Evaluated(evaluation=verdict))
        best = self.speed(self.tree.best.get(self.problem.hash))
        kept = not failed and (best is None or self.speed(candidate.hash) > best)
        comparison = None
        if not failed and best is not None:
            holder = self.tree.nodes[self.problem.hash, self.tree.best[self.problem.hash]].candidate
            ratio = math.exp(self.speed(candidate.hash) - best)
            comparison = self.make.comparison(
                holder,
                candidate,
                self.problem,
                ratio=ratio,
                ci_low=ratio,
                ci_high=ratio,
                outcome=Outcome.FASTER if kept else Outcome.NOT_FASTER,
            )
            self.tree.apply(Compared(comparison=comparison))
        decision = Decision(
            problem_hash=self.problem.hash,
            candidate_hash=candidate.hash,
            kept=kept,
            reason="because",
            evaluation_hash=verdict.hash,
            comparison_hash=comparison.hash if comparison else None,
        )
        self.tree.apply(Decided(decision=decision))
        return candidate

    def grown(self, name, *parents, time_us=None, failed=None, status=Status.WRONG, **changes):
        return self.judged(self.propose(name, *parents, **changes), time_us, failed=failed, status=status)

    def speed(self, own):
        return None if own is None else speeds(self.tree, self.problem.hash).certified(own)

    def room(self, expansions=1, pending=(), barren=()):
        return Allowance(
            problem_hash=self.problem.hash,
            expansions=expansions,
            pending=tuple(pending),
            barren=tuple(barren),
        )

    def choose(self, strategy, expansions=1, pending=(), barren=(), seed=0):
        room = self.room(expansions, pending, barren)
        return strategy.choose(self.tree, room, rng_at(self.tree, room, seed))


def journalled(folder, clock, kill_after=None):
    """Begin a journal or take it up; return it, its tree, and what appends to both, killed for good after so many."""
    if folder.exists():
        journal = Journal.open_for_writing(folder, clock=clock)
        tree = journal.tree()
    else:
        folder.mkdir()
        journal, tree = Journal.create(folder, "run", clock=clock), Tree()
    left = [kill_after]

    def record(bodies):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        journal.append(bodies)
        for body in bodies:
            tree.apply(body)
        if left[0] is not None:
            left[0] -= 1

    return journal, tree, record

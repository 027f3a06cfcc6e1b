"""What an llm says a kernel waits for: asked once for each parent, held to the measured numbers, journalled.

The rules have spoken first and stand where the llm has nothing usable to say: its evidence must name metrics that were
measured, with the values they had.
"""

from collections.abc import Sequence

from kernelwright.core.case import Case
from kernelwright.core.diagnosis import Diagnosis
from kernelwright.core.events import Analysed, Body, LlmAsked
from kernelwright.core.expansion import Expansion
from kernelwright.core.halt import Halt
from kernelwright.core.problem import Problem
from kernelwright.core.thinking import Consultation, Profiled
from kernelwright.core.tree import Node
from kernelwright.engine.asking import cards, keep_texts
from kernelwright.engine.crew import end_of_recording, together
from kernelwright.engine.diagnosing import metrics_of, telling_case
from kernelwright.engine.run import Run

MOST = 3
"""Diagnoses asked for, one for each author of the crew."""


def analyse(run: Run, problem: Problem, expansions: Sequence[Expansion]) -> None:
    """Have llms say what the parents of their expansions wait for, all at once, where nobody has said so yet."""
    if run.config.analyst != "llm":
        return
    wanted: dict[str, _Analysis] = {}
    for expansion in expansions:
        for parent in expansion.parents[:1]:
            node = run.tree.nodes[problem.hash, parent]
            case = telling_case(problem, node)
            if parent not in wanted and node.analysis is None and case and run.member(expansion).thinker:
                wanted[parent] = _Analysis(run, problem, expansion, node, case)
    told: list[Body] = []
    for one, found in zip(wanted.values(), together(list(wanted.values())), strict=True):
        end_of_recording(found.exchanges)
        keep_texts(run, found.texts)
        told += one.told(found)
    if told:
        run.record(told)


class _Analysis:
    """One parent, to be analysed for one expansion."""

    def __init__(self, run: Run, problem: Problem, expansion: Expansion, node: Node, case: Case) -> None:
        self.run, self.expansion, self.node, self.problem = run, expansion, node, problem
        known = cards(problem, node.candidate.backend)
        self.profiled = Profiled(
            candidate=node.candidate,
            device=problem.device,
            case=case.label,
            metrics=metrics_of(problem, node, case, run.ceilings),
            cards={card.name: card.title for card in known},
        )

    def __call__(self, halt: Halt) -> Consultation[tuple[Diagnosis, ...]]:
        """Return what the llm says."""
        thinker = self.run.member(self.expansion).thinker
        assert thinker is not None, "only who can be asked is asked"
        count = max(1, min(MOST, len(self.run.members)))
        return thinker.until(halt).analyse(self.profiled, count, self.run.config.seed + self.node.seq)

    def told(self, found: Consultation[tuple[Diagnosis, ...]]) -> list[Body]:
        """Return it as events."""
        own = self.node.candidate.hash
        asked = [
            LlmAsked(expansion=self.expansion, exchange=one, candidate_hash=own) for one in found.exchanges
        ]
        analysed = Analysed(
            problem_hash=self.problem.hash,
            candidate_hash=own,
            agent=self.run.member(self.expansion).label,
            diagnoses=found.value or (),
            reason="" if found.value else found.reason,
        )
        return [*asked, analysed]

"""Looking back: what the author of a decided attempt makes of it, and how what was kept is worded as a lesson.

Every decided attempt of an llm gets one `Remark`, failures too; one that its author says nothing usable about still
tells how it ended. A keep is named on top: the measured effect is the judge's, the sentence is the llm's.
"""

from kernelwright.core.brief import Ending
from kernelwright.core.diagnosis import Diagnosis
from kernelwright.core.difference import change_of
from kernelwright.core.events import Body, LessonLearnt, LlmAsked, Remarked
from kernelwright.core.exchange import Exchange
from kernelwright.core.halt import Halt
from kernelwright.core.lesson import Lesson
from kernelwright.core.problem import Problem
from kernelwright.core.remark import Remark
from kernelwright.core.search import failure_of, last_verdict, nodes_of
from kernelwright.core.thinking import Attempted, Measured
from kernelwright.core.tree import Node
from kernelwright.core.verdict import Comparison, Evaluation
from kernelwright.engine.asking import cards, keep_texts, waits_of
from kernelwright.engine.crew import end_of_recording, together
from kernelwright.engine.run import Run

FIRST = "a first kernel: there is no parent"


def unreflected(run: Run, problem: Problem) -> list[Node]:
    """Return the decided attempts of llms that their authors have not looked back on, oldest first."""
    if not run.config.reflect or not run.members:
        return []
    return [
        node
        for node in nodes_of(run.tree, problem.hash)
        if node.decision is not None
        and node.remark is None
        and node.expansion is not None
        and run.member(node.expansion).thinker is not None
        and last_verdict(node) is not None
    ]


def look_back(run: Run, problem: Problem, nodes: list[Node]) -> None:
    """Have the authors look back on their attempts, all at once, and journal it in the order of the attempts."""
    told: list[Body] = []
    for bodies, exchanges, texts in together([_Looking(run, problem, node) for node in nodes]):
        end_of_recording(exchanges)
        keep_texts(run, texts)
        told += bodies
    run.record(told)


class _Looking:
    """One attempt, to be looked back on."""

    def __init__(self, run: Run, problem: Problem, node: Node) -> None:
        assert node.expansion is not None and node.decision is not None
        self.run, self.problem, self.node = run, problem, node
        self.expansion, self.decision = node.expansion, node.decision
        self.member = run.member(node.expansion)
        above = run.tree.nodes.get((problem.hash, next(iter(node.candidate.parents), "")))
        self.change = change_of(above.candidate, node.candidate) if above else FIRST
        self.wait = self._wait(above)

    def _wait(self, above: Node | None) -> Diagnosis | None:
        """Return what the attempt worked against."""
        if above is None:
            return None
        known = cards(self.problem, above.candidate.backend)
        waits = waits_of(self.run, self.problem, above, known)
        return waits[self.expansion.diagnosis] if self.expansion.diagnosis < len(waits) else None

    def __call__(self, halt: Halt) -> tuple[list[Body], list[Exchange], list[str]]:
        """Return what is to be journalled, and what was said for it."""
        assert self.member.thinker is not None
        thinker, verdict = self.member.thinker.until(halt), last_verdict(self.node)
        assert verdict is not None
        seed = self.run.config.seed + self.node.seq
        attempted = Attempted(
            diagnosis=self.wait.text if self.wait else "",
            note=self.node.candidate.note,
            change=self.change,
            evaluation=verdict,
            decision=self.decision.reason,
        )
        found = thinker.reflect(attempted, seed)
        remark = self._remark(verdict).model_copy(
            update={"reflection": found.value, "reason": "" if found.value else found.reason}
        )
        bodies: list[Body] = [*self._asked(found.exchanges), Remarked(remark=remark)]
        exchanges, texts = [*found.exchanges], [*found.texts]
        if self.decision.kept and self.node.comparisons:
            named = thinker.name(self._measured(self.node.comparisons[-1]), seed)
            bodies += self._asked(named.exchanges)
            if named.value is not None:
                bodies.append(LessonLearnt(lesson=self._lesson(named.value)))
            exchanges += named.exchanges
            texts += named.texts
        return bodies, exchanges, texts

    def _asked(self, exchanges: tuple[Exchange, ...]) -> list[Body]:
        own = self.node.candidate.hash
        return [LlmAsked(expansion=self.expansion, exchange=one, candidate_hash=own) for one in exchanges]

    def _remark(self, verdict: Evaluation) -> Remark:
        is_failed = failure_of(self.node) is not None
        return Remark(
            problem_hash=self.problem.hash,
            candidate_hash=self.node.candidate.hash,
            parent_hash=next(iter(self.node.candidate.parents), ""),
            agent=self.member.label,
            worker=self.member.place,
            outcome=Ending.KEPT if self.decision.kept else Ending.FAILED if is_failed else Ending.REVERTED,
            status=failure_of(self.node) or verdict.status,
            bottleneck=self.wait.category.value if self.wait else "",
        )

    def _measured(self, found: Comparison) -> Measured:
        candidate = self.node.candidate
        return Measured(
            op=self.problem.op,
            backend=candidate.backend,
            arch=self.problem.device.arch,
            bottleneck=self.wait.category.value if self.wait else None,
            note=candidate.note,
            change=self.change,
            outcome=self.decision.reason,
            ratio=found.ratio,
            evaluations=(found.hash,),
        )

    def _lesson(self, named: Lesson) -> Lesson:
        """Return the lesson with what was measured of the keep, if that was journalled without words."""
        own = self.node.candidate.hash
        wordless = [one for one in self.run.tree.lessons if one.candidate_hash == own]
        words = named.model_dump(include={"claim", "op", "backend", "arch", "bottleneck"})
        return wordless[-1].model_copy(update=words) if wordless else named

"""Answering: authors are asked, what they say is journalled with what they propose, and looks they want are taken.

A single author answers the oldest expansion; a crew answers one each at the same time (`crew`). First drafts are a race
of their own (`drafting`). Before a kernel is to be made faster, an llm may be asked what it waits for (`analysing`).
"""

from collections.abc import Container, Sequence
from functools import partial
from itertools import cycle

from kernelwright.core.brief import Answer, Brief, Trial
from kernelwright.core.candidate import Author, Candidate
from kernelwright.core.events import Body, CandidateProposed, ExpansionAnswered, LlmAsked, Screened
from kernelwright.core.expansion import Expansion
from kernelwright.core.halt import Halt
from kernelwright.core.marked import outside_unchanged, plain
from kernelwright.core.normal import key_of, known_keys
from kernelwright.core.problem import Problem
from kernelwright.engine.analysing import analyse
from kernelwright.engine.asking import MOST_LOOKS, brief, keep_texts
from kernelwright.engine.crew import end_of_recording, stoppable, together
from kernelwright.engine.run import Run
from kernelwright.engine.service import JudgeClient


def answer(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Have the crew answer the oldest expansions; an author that wants looks first gets them, and is asked again."""
    assert run.members, "nothing is asked for without an author"
    quest = run.tree.quests[problem.hash]
    # One author hears of its first answer before it gives the second.
    expansions = quest.pending[: len(run.members)]
    analyse(run, problem, expansions)
    left = MOST_LOOKS - quest.looks
    given = together([asked(run, expansion, left) for expansion in expansions])
    wanting: list[tuple[Expansion, Answer]] = []
    told: list[Body] = []
    known = set(known_keys(run.tree, problem.hash))
    for expansion, said in zip(expansions, given, strict=True):
        end_of_recording(said.exchanges)
        if said.trials and left > 0 and not said.proposals:
            wanting.append((expansion, said))
        else:
            told += journalled(run, problem, expansion, said, known)
    if told:
        run.record(told)
        prepare((judge, *run.judges), problem, told)
    for expansion, said in wanting:
        look(run, judge, problem, said.trials, exchanged(run, expansion, said))


def asked(run: Run, expansion: Expansion, looks: int) -> partial[Answer]:
    """Return the act of asking an author for an expansion; what it is told is settled now."""
    return partial(_propose, run, expansion, brief(run, expansion, looks))


def _propose(run: Run, expansion: Expansion, told: Brief, halt: Halt) -> Answer:
    return stoppable(run.member(expansion), halt).propose(told)


def exchanged(run: Run, expansion: Expansion, given: Answer) -> list[Body]:
    """Return what was said to an llm and by it, the texts put away."""
    keep_texts(run, given.texts)
    return [LlmAsked(expansion=expansion, exchange=one) for one in given.exchanges]


def journalled(
    run: Run, problem: Problem, expansion: Expansion, given: Answer, known: set[str]
) -> list[Body]:
    """Return an answer as events: what was said, the candidates that are new, and what became of the expansion."""
    fresh, reasons = list[Candidate](), [given.reason] if given.reason else []
    for proposal in given.proposals:
        candidate = signed(run, expansion, proposal.candidate(problem, expansion.parents))
        if words := refused(run, problem, candidate, known):
            reasons.append(words)
        else:
            known.add(key_of(candidate))
            fresh.append(candidate)
    return [
        *exchanged(run, expansion, given),
        *(CandidateProposed(problem_hash=problem.hash, candidate=candidate) for candidate in fresh),
        ExpansionAnswered(
            expansion=expansion,
            author=run.member(expansion).name,
            candidates=tuple(candidate.hash for candidate in fresh),
            reason="" if fresh else "; ".join(reasons) or "no proposal",
        ),
    ]


def signed(run: Run, expansion: Expansion, candidate: Candidate) -> Candidate:
    """Return a candidate with its author's place in the crew, where there are several."""
    if len(run.members) < 2:
        return candidate
    own = candidate.author
    detail = f"{own.detail} #{run.member(expansion).place + 1}".strip()
    return candidate.model_copy(update={"author": Author(name=own.name, detail=detail)})


def prepare(judges: Sequence[JudgeClient], problem: Problem, told: Sequence[Body]) -> None:
    """Tell each judge of the candidates it will be asked about."""
    fresh = [body.candidate for body in told if isinstance(body, CandidateProposed)]
    for judge, candidate in zip(cycle(judges), fresh, strict=False):
        judge.prepare(problem, candidate)


def refused(run: Run, problem: Problem, candidate: Candidate, known: Container[str]) -> str | None:
    """Return why a proposal is not judged at all, or None."""
    if candidate.backend not in run.seeds.backends:
        return f"language {candidate.backend!r}, which this run does not use"
    if key_of(candidate) in known:
        return "in the tree already"
    parents = [run.tree.nodes[problem.hash, parent].candidate for parent in candidate.parents[:1]]
    for before in [run.seeds.given] if run.seeds.given else parents:
        if before.backend == candidate.backend and (
            words := outside_unchanged(before.source, plain(candidate.source))
        ):
            return words
    return None


def look(
    run: Run, judge: JudgeClient, problem: Problem, trials: Sequence[Trial], said: Sequence[Body] = ()
) -> None:
    """Take the looks an author wants, one candidate's together."""
    by_candidate: dict[str, list[Trial]] = {}
    for trial in trials:
        by_candidate.setdefault(trial.candidate_hash, []).append(trial)
    told: list[Body] = [*said]
    for own, wanted in by_candidate.items():
        candidate = run.tree.nodes[problem.hash, own].candidate
        told += [Screened(screening=one) for one in judge.screen(problem, candidate, tuple(wanted))]
    run.record(told)

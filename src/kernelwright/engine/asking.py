"""Asking authors: the strategy says what to expand, the brief says everything about it, the looks come first.

An answer is journalled together with what it proposes. An author that is killed with the run is simply asked again:
the brief is a function of the tree and of the ceilings, which are measured once, so it is the same brief.
"""

from collections.abc import Container, Sequence
from functools import cache

from kernelwright.core import plugins
from kernelwright.core.brief import Brief, Trial
from kernelwright.core.candidate import Candidate
from kernelwright.core.device import DeviceKind
from kernelwright.core.diagnosis import Diagnosis
from kernelwright.core.events import (
    Body,
    CandidateProposed,
    ExpansionAnswered,
    ExpansionAsked,
    LlmAsked,
    Screened,
)
from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.marked import outside_unchanged
from kernelwright.core.normal import key_of, known_keys
from kernelwright.core.ports import Strategy
from kernelwright.core.problem import Problem
from kernelwright.core.recall import brief_of
from kernelwright.core.search import rng_at
from kernelwright.core.technique import Language, Technique, Wanted, architecture_of, chosen
from kernelwright.engine.diagnosing import diagnoses_of
from kernelwright.engine.run import Run
from kernelwright.engine.service import JudgeClient
from kernelwright.store.blobs import Blobs
from kernelwright.store.playbook import read_playbook

MOST_LOOKS = 96
"""Looks an author may ask for before it must answer."""
CARDS = 6
"""Technique cards in a brief."""
BOLDER = "nothing was kept for a while: try something of another kind"


def ask(run: Run, problem: Problem) -> bool:
    """Have the strategy choose expansions, as many as there is room for; tell whether it chose any."""
    quest = run.tree.quests[problem.hash]
    allowance = Allowance(
        problem_hash=problem.hash,
        expansions=run.config.workers,
        pending=tuple(quest.pending),
        barren=tuple(quest.barren),
    )
    name = strategy_of(run, problem)
    strategy: Strategy = plugins.load("strategies", name)
    wanted = strategy.choose(run.tree, allowance, rng_at(run.tree, allowance, run.config.seed))
    asked: list[Body] = [ExpansionAsked(strategy=name, expansion=_bolder(one, quest.level)) for one in wanted]
    if asked:
        run.record(asked)
    return bool(asked)


def strategy_of(run: Run, problem: Problem) -> str:
    """Return the strategy in charge: the one asked for, another one once the search is escalated twice."""
    if run.tree.quests[problem.hash].level < 2:
        return run.config.strategy
    return "evolve" if run.config.strategy != "evolve" else "mcts"


def _bolder(expansion: Expansion, level: int) -> Expansion:
    """Return the expansion as an escalated search words it: without the memory that led here."""
    if level == 0:
        return expansion
    return expansion.model_copy(update={"hint": BOLDER, "memory": Memory.SIBLINGS})


def answer(run: Run, judge: JudgeClient, problem: Problem) -> None:
    """Have the author answer the oldest expansion; looks it wants first are taken, and it is asked again later."""
    assert run.author is not None, "nothing is asked for without an author"
    quest = run.tree.quests[problem.hash]
    expansion = quest.pending[0]
    given = run.author.propose(brief(run, expansion, MOST_LOOKS - quest.looks))
    blobs = Blobs(run.folder / "blobs")
    for text in given.texts:
        blobs.put(text.encode())
    said: list[Body] = [LlmAsked(expansion=expansion, exchange=one) for one in given.exchanges]
    if given.trials and quest.looks < MOST_LOOKS and not given.proposals:
        look(run, judge, problem, given.trials, said)
        return
    known = set(known_keys(run.tree, problem.hash))
    fresh, reasons = list[Candidate](), [given.reason] if given.reason else []
    for proposal in given.proposals:
        candidate = proposal.candidate(problem, expansion.parents)
        if words := refused(run, problem, candidate, known):
            reasons.append(words)
        else:
            known.add(key_of(candidate))
            fresh.append(candidate)
    told: list[Body] = [
        CandidateProposed(problem_hash=problem.hash, candidate=candidate) for candidate in fresh
    ]
    answered = ExpansionAnswered(
        expansion=expansion,
        author=run.config.author,
        candidates=tuple(candidate.hash for candidate in fresh),
        reason="" if fresh else "; ".join(reasons) or "no proposal",
    )
    run.record([*said, *told, answered])
    for candidate in fresh:
        judge.prepare(problem, candidate)


def refused(run: Run, problem: Problem, candidate: Candidate, known: Container[str]) -> str | None:
    """Return why a proposal is not judged at all, or None."""
    if candidate.backend not in run.seeds.backends:
        return f"language {candidate.backend!r}, which this run does not use"
    if key_of(candidate) in known:
        return "in the tree already"
    for parent in candidate.parents[:1]:
        before = run.tree.nodes[problem.hash, parent].candidate
        if before.backend == candidate.backend and (
            words := outside_unchanged(before.source, candidate.source)
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


def brief(run: Run, expansion: Expansion, looks: int) -> Brief:
    """Return everything an author is told: what follows from the tree, the contract, and the cards that apply."""
    found = brief_of(run.tree, expansion, run.config.seed + run.tree.quests[expansion.problem_hash].asked)
    problem = found.problem
    backend = found.parents[0].backend if found.parents else run.seeds.backends[0]
    known = cards(problem, backend)
    waits = _diagnoses(run, expansion, known)
    return found.model_copy(
        update={
            "contract": contract(problem, backend),
            "diagnoses": tuple(one.text for one in waits),
            "cards": tuple(card.markdown for card in _prescribed_first(known, waits, expansion)[:CARDS]),
            "lessons": tuple(one for one in run.tree.lessons if one.op in (None, problem.op)),
            "most_trials": min(found.most_trials, max(0, looks)),
        }
    )


def _diagnoses(run: Run, expansion: Expansion, known: Sequence[Technique]) -> list[Diagnosis]:
    """Return what the first parent waits for, strongest first."""
    problem = run.tree.problems[expansion.problem_hash]
    node = run.tree.nodes[problem.hash, expansion.parents[0]] if expansion.parents else None
    return [] if node is None else diagnoses_of(problem, node, known, run.ceilings)


def _prescribed_first(
    known: Sequence[Technique], waits: Sequence[Diagnosis], expansion: Expansion
) -> list[Technique]:
    """Return the cards, those against the diagnosis to work on first; past the last one, all by tier."""
    wanted = waits[expansion.diagnosis].prescriptions if expansion.diagnosis < len(waits) else ()
    places = {name: place for place, name in enumerate(wanted)}
    return sorted(known, key=lambda card: places.get(card.name, len(places)))


def contract(problem: Problem, backend: str) -> str:
    """Return what a candidate must be: what the op computes and the rules of the language."""
    op, language = plugins.load("ops", problem.op), plugins.load("backends", backend)
    cases = "; ".join(case.label for case in problem.cases)
    return f"{op.SUMMARY}\nCases: {cases}\nLanguage {backend}: {language.NOTES}"


def cards(problem: Problem, backend: str) -> list[Technique]:
    """Return the technique cards for a problem in a language on its device."""
    on_cpu = problem.device.kind is DeviceKind.CPU
    arch = None if on_cpu else architecture_of(problem.device.arch)
    language = Language(backend) if backend in list(Language) else None
    return chosen(_playbook(), Wanted(backend=language, op=problem.op, arch=arch))


@cache
def _playbook() -> tuple[Technique, ...]:
    return tuple(read_playbook())

"""Asking authors: the strategy says what to expand, the brief says everything about it, the looks come first.

An answer is journalled together with what it proposes. An author that is killed with the run is simply asked again:
the brief is a function of the tree, so it is the same brief.
"""

from collections.abc import Sequence
from functools import cache

from kernelwright.core import plugins
from kernelwright.core.brief import Answer, Brief, Trial
from kernelwright.core.candidate import Candidate
from kernelwright.core.device import DeviceKind
from kernelwright.core.events import Body, CandidateProposed, ExpansionAnswered, ExpansionAsked, Screened
from kernelwright.core.expansion import Allowance, Expansion, Memory
from kernelwright.core.normal import key_of, known_keys
from kernelwright.core.ports import Strategy
from kernelwright.core.problem import Problem
from kernelwright.core.recall import brief_of
from kernelwright.core.search import rng_at
from kernelwright.core.technique import Language, Technique, Wanted, architecture_of, chosen
from kernelwright.engine.run import Run
from kernelwright.engine.service import JudgeClient
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
    if given.trials and quest.looks < MOST_LOOKS and not given.proposals:
        look(run, judge, problem, given.trials)
        return
    known = known_keys(run.tree, problem.hash)
    fresh: dict[str, Candidate] = {}
    for proposal in given.proposals:
        candidate = proposal.candidate(problem, expansion.parents)
        key = key_of(candidate)
        if key not in known and proposal.backend in run.seeds.backends:
            fresh.setdefault(key, candidate)
    reason = "" if fresh else _why_nothing(given)
    told: list[Body] = [
        CandidateProposed(problem_hash=problem.hash, candidate=candidate) for candidate in fresh.values()
    ]
    hashes = tuple(candidate.hash for candidate in fresh.values())
    answered = ExpansionAnswered(
        expansion=expansion, author=run.config.author, candidates=hashes, reason=reason
    )
    run.record([*told, answered])
    for candidate in fresh.values():
        judge.prepare(problem, candidate)


def _why_nothing(given: Answer) -> str:
    if given.proposals:
        return "every proposal is in the tree already, or in a language this run does not use"
    return given.reason or "no proposal"


def look(run: Run, judge: JudgeClient, problem: Problem, trials: Sequence[Trial]) -> None:
    """Take the looks an author wants, one candidate's together."""
    by_candidate: dict[str, list[Trial]] = {}
    for trial in trials:
        by_candidate.setdefault(trial.candidate_hash, []).append(trial)
    told: list[Body] = []
    for own, wanted in by_candidate.items():
        candidate = run.tree.nodes[problem.hash, own].candidate
        told += [Screened(screening=one) for one in judge.screen(problem, candidate, tuple(wanted))]
    run.record(told)


def brief(run: Run, expansion: Expansion, looks: int) -> Brief:
    """Return everything an author is told: what follows from the tree, the contract, and the cards that apply."""
    found = brief_of(run.tree, expansion, run.config.seed + run.tree.quests[expansion.problem_hash].asked)
    problem = found.problem
    backend = found.parents[0].backend if found.parents else run.seeds.backends[0]
    return found.model_copy(
        update={
            "contract": contract(problem, backend),
            "cards": tuple(card.markdown for card in cards(problem, backend)[:CARDS]),
            "lessons": tuple(one for one in run.tree.lessons if one.op in (None, problem.op)),
            "most_trials": min(found.most_trials, max(0, looks)),
        }
    )


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

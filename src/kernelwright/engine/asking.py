"""Asking authors: the strategy says what to expand, the brief says everything about it.

The brief is a function of the tree and of the ceilings, which are measured once: an author that is killed with the run
is simply asked again, with the same brief.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import zip_longest

from kernelwright.core import plugins
from kernelwright.core.brief import Brief
from kernelwright.core.candidate import Origin
from kernelwright.core.device import DeviceKind
from kernelwright.core.diagnosis import Diagnosis
from kernelwright.core.events import Body, ExpansionAsked
from kernelwright.core.expansion import Allowance, Expansion
from kernelwright.core.memory import conclusions
from kernelwright.core.ports import Strategy
from kernelwright.core.problem import Problem
from kernelwright.core.recall import brief_of
from kernelwright.core.search import nodes_of, rng_at
from kernelwright.core.technique import Language, Technique, Wanted, architecture_of, chosen
from kernelwright.core.tree import Node, Tree
from kernelwright.engine.crew import can_draft, spread
from kernelwright.engine.diagnosing import diagnoses_of
from kernelwright.engine.escalating import bolder, drafts, seen, strategy_of
from kernelwright.engine.knowing import lessons_for, notes_for
from kernelwright.engine.run import Run
from kernelwright.store.blobs import Blobs
from kernelwright.store.playbook import read_playbook

MOST_LOOKS = 96
"""Looks an author may ask for before it must answer."""
CARDS = 6
"""Technique cards in a brief."""
LEAST_S = 1.0
"""What an author is given when the budget is spent: nobody can answer in no time."""


def ask(run: Run, problem: Problem) -> bool:
    """Have the strategy choose expansions, as many as there is room for; tell whether it chose any."""
    quest, tree = run.tree.quests[problem.hash], seen(run, problem)
    allowance = Allowance(
        problem_hash=problem.hash,
        expansions=_room(run, tree, problem),
        pending=tuple(quest.pending),
        barren=tuple(quest.barren),
    )
    name = strategy_of(run, problem)
    strategy: Strategy = plugins.load("strategies", name)
    wanted = drafts(run, problem)
    if not wanted and (tree is run.tree or any(map(_is_authors, nodes_of(tree, problem.hash)))):
        wanted = strategy.choose(tree, allowance, rng_at(tree, allowance, run.config.seed))
    shared = spread(wanted, quest.pending, quest.asked, max(1, len(run.members)))
    asked: list[Body] = [ExpansionAsked(strategy=name, expansion=bolder(run, one)) for one in shared]
    if asked:
        run.record(asked)
    return bool(asked)


def _room(run: Run, tree: Tree, problem: Problem) -> int:
    """Return how many expansions are asked for at once: one for every author, or drafts while there is no kernel."""
    if can_draft(run.members) and not any(map(_is_authors, nodes_of(tree, problem.hash))):
        return run.config.drafts
    return len(run.members) if len(run.members) > 1 else run.config.workers


def _is_authors(node: Node) -> bool:
    return node.candidate.origin is not Origin.BASELINE


def brief(run: Run, expansion: Expansion, looks: int) -> Brief:
    """Return everything an author is told: what follows from the tree, the contract, and the cards that apply."""
    # Authors asked at the same time draw different things: a server with the same seed says the same twice.
    apart = expansion.worker if expansion.parents else expansion.diagnosis
    found = brief_of(
        run.tree, expansion, run.config.seed + run.tree.quests[expansion.problem_hash].asked + apart
    )
    problem = found.problem
    backend = found.parents[0].backend if found.parents else expansion.backend or run.seeds.backends[0]
    known = cards(problem, backend)
    waits = _diagnoses(run, expansion, known)
    told = _prescribed_first(known, waits, expansion)
    prescription = ""
    if run.members and run.member(expansion).thinker and (orders := prescriptions(waits, known)):
        prescription = orders[expansion.diagnosis % len(orders)]
        told = sorted(told, key=lambda card: card.name != prescription)
    wait = waits[expansion.diagnosis].category.value if expansion.diagnosis < len(waits) else ""
    return found.model_copy(
        update={
            "contract": contract(problem, backend)
            + ("" if found.parents else _reference(run, problem, backend)),
            "diagnoses": tuple(one.text for one in waits),
            "prescription": prescription,
            "memos": conclusions(run.tree, expansion, wait),
            "cards": tuple(card.markdown for card in told[:CARDS]),
            "lessons": lessons_for(run.tree, problem, backend),
            "notes": notes_for(run, problem, backend, waits, expansion.diagnosis),
            "most_trials": min(found.most_trials, max(0, looks)),
            # No author takes a run past its budget, however slow it is.
            "time_limit_s": min(found.time_limit_s, max(LEAST_S, run.config.budget_s - run.spent.seconds)),
        }
    )


def _diagnoses(run: Run, expansion: Expansion, known: Sequence[Technique]) -> list[Diagnosis]:
    """Return what the first parent waits for, strongest first."""
    problem = run.tree.problems[expansion.problem_hash]
    node = run.tree.nodes[problem.hash, expansion.parents[0]] if expansion.parents else None
    return [] if node is None else waits_of(run, problem, node, known)


def waits_of(run: Run, problem: Problem, node: Node, known: Sequence[Technique]) -> list[Diagnosis]:
    """Return what a candidate waits for: what an llm said of it and could prove, else what the rules say."""
    if node.analysis is not None and node.analysis.diagnoses:
        return [*node.analysis.diagnoses]
    return diagnoses_of(problem, node, known, run.ceilings)


def prescriptions(waits: Sequence[Diagnosis], known: Sequence[Technique]) -> list[str]:
    """Return the cards to try, each once: the first of every diagnosis, the second of every one, then all others."""
    rows = zip_longest(*(one.prescriptions for one in waits))
    named = [name for row in rows for name in row if name is not None]
    return list(dict.fromkeys((*named, *(card.name for card in known)))) if waits else []


def _prescribed_first(
    known: Sequence[Technique], waits: Sequence[Diagnosis], expansion: Expansion
) -> list[Technique]:
    """Return the cards, those against the diagnosis to work on first; past the last one, all by tier."""
    wanted = waits[expansion.diagnosis].prescriptions if expansion.diagnosis < len(waits) else ()
    places = {name: place for place, name in enumerate(wanted)}
    return sorted(known, key=lambda card: places.get(card.name, len(places)))


def _reference(run: Run, problem: Problem, backend: str) -> str:
    """Return what a first kernel is written from: the baseline's source, the signature, and the language's headers."""
    case = problem.cases[0]
    words = [
        *(f"input {one.name}: {'x'.join(map(str, one.shape))} {one.dtype.value}" for one in case.inputs),
        *(f"scalar {name}, such as {value}" for name, value in case.scalars.items()),
        *(f"output {one.name}: {'x'.join(map(str, one.shape))} {one.dtype.value}" for one in case.outputs),
    ]
    told = f"\nIn this order, at the first case: {'; '.join(words)}."
    for node in nodes_of(run.tree, problem.hash):
        if node.candidate.origin is Origin.BASELINE and node.candidate.backend == "eager":
            told += f"\nThe reference, in PyTorch:\n```python\n{node.candidate.source.rstrip()}\n```"
    for header in getattr(plugins.load("backends", backend), "SIGNATURE_FILES", ()):
        told += f"\n`{header.name}`:\n```cpp\n{header.read_text(encoding='utf-8').rstrip()}\n```"
    return told


def keep_texts(run: Run, texts: Iterable[str]) -> None:
    """Put prompts and replies where the exchanges name them by hash."""
    blobs = Blobs(run.folder / "blobs")
    for text in texts:
        blobs.put(text.encode())


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

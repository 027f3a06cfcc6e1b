"""Taking part in a run from outside: which problem is meant, what an author is told of it, what is submitted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelwright.agents._reply import read_reply
from kernelwright.core import plugins
from kernelwright.core.brief import Brief, Proposal
from kernelwright.core.candidate import Author, Origin
from kernelwright.core.config import RunConfig
from kernelwright.core.errors import BadConfig, BadInput
from kernelwright.core.events import Body
from kernelwright.core.expansion import Expansion, Memory
from kernelwright.core.normal import key_of, known_keys
from kernelwright.core.problem import Problem
from kernelwright.core.tree import Node, Tree
from kernelwright.engine.asking import MOST_LOOKS, brief
from kernelwright.engine.foreign_runs import FoundRun
from kernelwright.engine.judging import source_of
from kernelwright.engine.offering import languages
from kernelwright.engine.run import Run
from kernelwright.engine.seeds import Seeds
from kernelwright.hardware.detect import usable_cores

ANSWER_SUFFIX = ".json"


def onlooking(found: FoundRun, tree: Tree) -> Run:
    """Return a run as it stands, for looking at: it writes nothing."""
    folder = found.folder
    assert folder is not None, "one takes part where the run is"
    if tree.started is None:
        raise BadConfig(str(folder), "the journal has no beginning", "Start a new run.")

    def refuse(_: Sequence[Body]) -> None:
        raise AssertionError("whoever looks on journals nothing")

    config = RunConfig.model_validate(tree.started.config)
    found.refuse_plugins(config)
    plugins.use(config.plugins)
    device, threads = tree.started.device, config.threads or usable_cores()
    seeds = Seeds(languages(config, device), threads)
    return Run(config, device, threads, folder, refuse, tree, lambda _: None, seeds)


def problem_named(tree: Tree, name: str | None) -> Problem:
    """Return the problem of a run that is meant: by its number from 1, by its label, or by a part that only it has."""
    problems = list(tree.problems.values())
    listed = "; ".join(f"{place} is {one.cases[0].label}" for place, one in enumerate(problems, 1))
    if name is None:
        if len(problems) == 1:
            return problems[0]
        raise BadInput(
            "--problem", f"the run has {len(problems)} problems", f"Say which: {listed or 'none'}."
        )
    if name.isdecimal() and 1 <= int(name) <= len(problems):
        return problems[int(name) - 1]
    labels = [" ".join(case.label for case in one.cases) for one in problems]
    found = [one for one, label in zip(problems, labels, strict=True) if label == name]
    if not found and not name.isdecimal():
        found = [one for one, label in zip(problems, labels, strict=True) if name in label]
    if len(found) != 1:
        many = "several problems are" if found else "no problem is"
        raise BadInput("--problem", f"{many} called {name!r}", f"Known: {listed}.")
    return found[0]


def brief_of_best(run: Run, problem: Problem) -> Brief:
    """Return what an author would be told who is asked to make the best of a problem faster."""
    best = run.tree.best.get(problem.hash)
    node = run.tree.nodes[problem.hash, best] if best else None
    # A baseline is no start: it is written in a language nobody submits.
    start = (best,) if best and node and node.candidate.origin is Origin.AUTHOR else _first_seed(run, problem)
    expansion = Expansion(problem_hash=problem.hash, parents=start, memory=Memory.BOTH)
    return brief(run, expansion, MOST_LOOKS)


def _first_seed(run: Run, problem: Problem) -> tuple[str, ...]:
    """Return the first candidate that is no baseline, accepted ones first, if there is any."""
    own = [
        node
        for (owner, _), node in run.tree.nodes.items()
        if owner == problem.hash and node.candidate.origin is Origin.AUTHOR
    ]
    own.sort(key=lambda node: not any(verdict.timing for verdict in node.evaluations))
    return tuple(node.candidate.hash for node in own[:1])


@dataclass(frozen=True)
class Wording:
    """What goes with a file that is submitted."""

    author: str
    note: str = ""


def proposals_in(path: Path, wording: Wording) -> tuple[Proposal, ...]:
    """Return what a file proposes: one source, or an answer in JSON as a program gives it to a brief."""
    author = Author(name=wording.author, detail=path.name)
    if path.suffix != ANSWER_SUFFIX:
        source, backend = source_of(path)
        return (Proposal(source=source, backend=backend, author=author, note=wording.note),)
    try:
        answer = read_reply(path.read_text(encoding="utf-8"), author)
    except FileNotFoundError as error:
        raise BadInput(str(path), "does not exist", "Name a source file.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), f"cannot be read: {error}", "Give a file in UTF-8.") from error
    if not answer.proposals:
        raise BadInput(str(path), answer.reason, "Give a source file, or JSON with source and backend.")
    return tuple(
        one.model_copy(update={"note": wording.note}) if wording.note else one for one in answer.proposals
    )


def refuse_useless(run: Run, problem: Problem, proposals: Sequence[Proposal]) -> None:
    """Raise for what the run would refuse or can never judge."""
    quest = run.tree.quests[problem.hash]
    if problem.hash not in run.tree.best and quest.ended is not None:
        problem_words = f"{problem.cases[0].label} has no accepted baseline"
        raise BadInput("--problem", problem_words, "Nothing can be compared there; name another one.")
    for one in proposals:
        if one.backend not in run.seeds.backends:
            known = ", ".join(run.seeds.backends)
            raise BadInput(f"language {one.backend!r}", "this run does not use it", f"It takes: {known}.")


def twins(tree: Tree, problem: Problem, proposals: Sequence[Proposal]) -> Iterator[Node | None]:
    """Yield, per proposal, the candidate of the run that is the same, if there is one."""
    known = known_keys(tree, problem.hash)
    for one in proposals:
        own = known.get(key_of(one.candidate(problem)))
        yield tree.nodes[problem.hash, own] if own else None

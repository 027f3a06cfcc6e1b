"""What a run is given to know: lessons, earlier winners, documents, read once when it begins; what a brief quotes.

Everything is journalled before the first step (`KnowledgeGiven`), documents as blobs of the run, so that a run that is
taken up again, or looked at later, tells every author the same. What was learnt or written since is for the next run.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from kernelwright.agents.mover import declined
from kernelwright.core import plugins
from kernelwright.core.candidate import Author, Candidate, ParamChoice
from kernelwright.core.device import Ceilings
from kernelwright.core.diagnosis import Diagnosis
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.events import KnowledgeGiven
from kernelwright.core.lesson import Document, Lesson, Shape, WarmStart, apart
from kernelwright.core.normal import key_of
from kernelwright.core.problem import Problem
from kernelwright.core.shelf import EarlierWinner
from kernelwright.core.technique import Technique
from kernelwright.core.tree import Node, Tree
from kernelwright.core.verdict import Comparison
from kernelwright.engine.diagnosing import diagnoses_of
from kernelwright.engine.lessons import findings, lesson_of
from kernelwright.engine.run import Run
from kernelwright.store.blobs import Blobs
from kernelwright.store.knowledge import (
    File,
    Level,
    Question,
    Text,
    document_texts,
    note_texts,
    read_folder,
    search,
)
from kernelwright.store.lessons import Scope, Shelf, shelf_file

STARTS = 2
"""Earlier winners a problem begins with besides its seeds."""
MOST_LESSONS = 24
"""Lessons of one op a run is given."""
IN_BRIEF = 12
"""Lessons an author is told."""
DOCUMENTS, NOTES, CONSTRAINTS = 6, 2, 3
"""Texts a brief quotes: of the user's folders, of our hardware notes, and of the rules that always hold."""
QUOTED = 2500
"""Characters of one text."""
EARLIER = "earlier winner"
"""The author of a warm start."""


def knowledge_given(run: Run, home: Path) -> KnowledgeGiven:
    """Return what a new run is given; documents go into its blobs."""
    problems = list(run.tree.problems.values())
    lessons, starts = list[Lesson](), list[WarmStart]()
    if run.config.lessons:
        shelf = Shelf(shelf_file(home))
        for op in dict.fromkeys(problem.op for problem in problems):
            for backend in run.seeds.backends:
                found = shelf.trusted(Scope(op, backend, run.device.arch), MOST_LESSONS)
                lessons += [one for one in found if one not in lessons]
        for problem in problems:
            starts += warm_starts(run, shelf, problem)
    return KnowledgeGiven(lessons=tuple(lessons), starts=tuple(starts), documents=_documents(run))


def _documents(run: Run) -> tuple[Document, ...]:
    blobs, found = Blobs(run.folder / "blobs"), []
    for folder in run.config.knowledge:
        files = read_folder(Path(folder))
        document_texts(files)  # what cannot be read is told now
        found += [Document(name=file.name, content_hash=blobs.put(file.text.encode())) for file in files]
    return tuple(found)


def warm_starts(run: Run, shelf: Shelf, problem: Problem) -> list[WarmStart]:
    """Return the best earlier winners of similar problems, as candidates for this one; none beside a given file."""
    if run.seeds.given is not None:
        return []
    shapes = [Shape.of(case) for case in problem.cases]
    seeds = {key_of(one) for one in run.seeds.first(problem)}
    found: list[WarmStart] = []
    for backend in run.seeds.backends:
        scope = Scope(problem.op, backend, problem.device.arch)
        for winner in shelf.near(scope, shapes, problem.reference, STARTS):
            candidate = fitted(winner, problem)
            if len(found) == STARTS or key_of(candidate) in seeds or declined(candidate, problem):
                continue
            start = WarmStart(
                problem_hash=problem.hash,
                candidate=candidate,
                run_id=winner.run_id,
                shapes=winner.shapes,
                ratio=winner.ratio,
                evaluations=winner.evaluations,
                lessons=winner.lessons,
            )
            found.append(start)
    return found


def fitted(winner: EarlierWinner, problem: Problem) -> Candidate:
    """Return a winner for another problem: every size gets the values of the nearest one they were chosen for."""
    rule = winner.choices[-1].values
    rows = []
    for case in problem.cases:
        special = [one for one in winner.choices if one.shapes]
        nearest = min(special, key=lambda one: apart([Shape.of(case)], one.shapes), default=None)
        if nearest is not None and nearest.values != rule:
            rows.append(ParamChoice(case_hashes=(case.hash,), values=nearest.values))
    sizes = ", ".join(shape.label for shape in winner.shapes)
    return Candidate(
        op=problem.op,
        backend=winner.backend,
        source=winner.source,
        choices=(*rows, ParamChoice(values=rule)),
        author=Author(name=EARLIER, detail=winner.run_id),
        note=f"the winner of {winner.op} {sizes} in run {winner.run_id}, x{winner.ratio:.2f} there",
    )


def starts_first(tree: Tree, problem: Problem, seeds: Sequence[Candidate]) -> list[Candidate]:
    """Return the first candidates to propose: the warm starts, and the seeds once those are decided on.

    A seed that has to beat a good start is out after a few pairs; together with it, it would be raced to the end.
    """
    wanted = [one.candidate for one in tree.given.starts if one.problem_hash == problem.hash]
    nodes = [tree.nodes.get((problem.hash, one.hash)) for one in wanted]
    if left := [one for one, node in zip(wanted, nodes, strict=True) if node is None]:
        return left
    return [] if any(node and node.decision is None for node in nodes) else list(seeds)


def lessons_for(tree: Tree, problem: Problem, backend: str) -> tuple[Lesson, ...]:
    """Return the lessons an author is told: those of this run, newest first, then those it was given, nearest first."""
    here = [Shape.of(case) for case in problem.cases]
    own = [one for one in reversed(tree.lessons) if one.applies(problem.op, backend, problem.device.arch)]
    known = {one.key for one in own}
    given = [
        one
        for one in tree.given.lessons
        if one.applies(problem.op, backend, problem.device.arch) and one.key not in known
    ]
    given.sort(key=lambda one: apart(here, one.shapes))
    return tuple((*own[: IN_BRIEF // 2], *given)[:IN_BRIEF])


def kept_lesson(run: Run, problem: Problem, node: Node, found: Comparison) -> Lesson:
    """Return what a keep teaches, with what the parent waited for."""
    parent = run.tree.nodes.get((problem.hash, node.candidate.parents[0])) if node.candidate.parents else None
    waits = first_wait(problem, parent, run.ceilings) if parent else ""
    return lesson_of(problem, node.candidate, found, parent.candidate if parent else None, waits)


def first_wait(problem: Problem, node: Node, ceilings: Ceilings | None) -> str:
    """Return what a candidate mostly waits for, in a word; empty if nothing says so."""
    cards: Sequence[Technique] = ()
    waits = diagnoses_of(problem, node, cards, ceilings)
    return waits[0].category.value if waits else ""


def notes_for(
    run: Run, problem: Problem, backend: str, waits: Sequence[Diagnosis], at: int = 0
) -> tuple[str, ...]:
    """Return the texts a brief quotes: found by what the parent waits for, on this op, language and hardware."""
    chosen = waits[at : at + 1] or waits[:1]
    said = " ".join(f"{one.category.value} {one.sentence} {' '.join(one.prescriptions)}" for one in chosen)
    question = Question(
        words=f"{problem.op} {backend} {plugins.load('ops', problem.op).SUMMARY} {said}",
        op=problem.op,
        backend=backend,
        arch=problem.device.arch,
        bottlenecks=tuple(one.category.value for one in chosen),
    )
    own = _documents_of(run.folder, run.tree.given.documents)
    rules = [one for one in own if one.level is Level.CONSTRAINTS and question.admits(one)][:CONSTRAINTS]
    rest = [one for one in own if one.level is not Level.CONSTRAINTS]
    # What is written for this very op, language or chip comes before what holds for all of them.
    told = sorted(search(rest, question), key=lambda one: -question.closeness(one))
    found = [*rules, *told[:DOCUMENTS], *search(note_texts(), question)[:NOTES]]
    return tuple(quoted(one) for one in found)


def quoted(one: Text) -> str:
    """Return a text as a brief holds it: named, and bounded."""
    body = one.text if len(one.text) <= QUOTED else one.text[:QUOTED] + "\n[cut]"
    return f"{one.level.value}, {one.source.value} {one.name}\n\n{body}"


@lru_cache(maxsize=4)
def _documents_of(folder: Path, documents: tuple[Document, ...]) -> tuple[Text, ...]:
    """Return a run's documents as they were when it began."""
    blobs = Blobs(folder / "blobs")
    files = [File(one.name, blobs.get(one.content_hash).decode()) for one in documents]
    return tuple(document_texts(files))


def shelve(run: Run, home: Path) -> None:
    """Put what a run has learnt on the shelf, but for somebody's own file; one that cannot be written ends no run."""
    if not run.config.lessons or run.seeds.given is not None:
        return
    found = findings(run.tree, run.folder.name)
    if not (found.learnt or found.seen or found.winners):
        return
    try:
        Shelf(shelf_file(home)).add(found)
    except KernelwrightError as error:
        run.show(f"what this run learnt is in its journal alone: {error}")

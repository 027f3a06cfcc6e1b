"""Tools that tell of a run: its problems, what an author is told, what was tried, what a compiler made of it."""

import math

from pydantic import Field

from kernelwright.cli.brief import markdown
from kernelwright.cli.hints import home_words
from kernelwright.cli.mcp.runs import RunNamed, named
from kernelwright.cli.mcp.tool import Place, Tool
from kernelwright.cli.screen import Answer
from kernelwright.cli.submit import name_of, opened
from kernelwright.core.candidate import Origin, ParamChoice
from kernelwright.core.errors import BadInput
from kernelwright.core.search import failure_of, last_verdict, speeds
from kernelwright.core.tree import Node, Tree
from kernelwright.engine.budget import floor_share
from kernelwright.engine.disassembling import Disassembled, Extent
from kernelwright.engine.disassembling import disassembly as listing
from kernelwright.engine.foreign_runs import FoundRun
from kernelwright.engine.taking_part import brief_of_best, onlooking, problem_named

MOST_ROWS = 200


class OfProblem(RunNamed):
    """Which problem of which run."""

    problem: str | None = None
    """Its number from 1, its label, or a part of it; may be left out if the run has only one."""


class HistoryOf(OfProblem):
    """Which part of a run's history."""

    after: int = Field(default=-1, ge=-1)
    """Only candidates with a greater number."""
    most: int = Field(default=50, ge=1, le=MOST_ROWS)
    """How many at most, the latest ones."""


class CandidateNamed(RunNamed):
    """Which candidate of which run."""

    candidate: str
    """Its number in the run, its hash, or the beginning of it."""
    lines: int = Field(default=300, ge=1, le=5000)
    """Lines of a listing that are shown."""
    function: str = ""
    """Only functions with this in their name; `kernel_fn` comes first otherwise."""


class ProblemRow(Answer):
    """One problem of a run."""

    number: int
    """What other tools call it."""
    op: str
    """The kernel type."""
    cases: list[str]
    """Its sizes."""
    share: float
    """Share of the model's time under the baseline."""
    count: int
    """How often it occurs in the model."""
    candidates: int
    """Candidates so far, baselines and seeds included."""
    best: str
    """Language and author of the best; empty before the first."""
    speed: float | None
    """Its certified speed over the first baseline."""
    of_floor: float | None
    """Share of its time that the hardware needs anyway; None where no floor is known."""
    ended: str
    """Why its search ended; empty while it goes on."""


class ProblemsAnswer(Answer):
    """The problems of a run."""

    run: str
    """The run."""
    languages: list[str]
    """What a candidate may be written in."""
    problems: list[ProblemRow]
    """In the order they were found, the most to win first."""


class BriefAnswer(Answer):
    """What an author is told."""

    run: str
    """The run."""
    number: int
    """The problem's number."""
    backend: str
    """Language of what to start from; empty if there is nothing yet."""
    candidate: str
    """Its hash; empty if there is nothing yet."""
    source: str
    """Its source: change it and submit it."""
    page: str
    """The whole brief, to read: contract, sizes, verdict, diagnosis, attempts, lessons, techniques."""


class Tried(Answer):
    """One candidate of a run."""

    number: int
    """Its number in the run."""
    candidate: str
    """Its hash."""
    problem: str
    """Op, size and type."""
    backend: str
    """Its language."""
    author: str
    """Who proposed it."""
    note: str
    """What was tried."""
    choices: list[ParamChoice]
    """Its parameters."""
    parents: list[str]
    """What it was made from."""
    status: str
    """How the judge ended; `pending` if it has not."""
    kept: bool | None
    """Whether it became the best; None while nothing is decided."""
    speed: float | None
    """Certified speed over the first baseline."""
    reason: str
    """Why it was kept, reverted or rejected."""


class HistoryAnswer(Answer):
    """What was tried in a run."""

    run: str
    """The run."""
    all: int
    """How many candidates there are in all."""
    tried: list[Tried]
    """In the order they were proposed."""


class DisassemblyAnswer(Answer):
    """What a compiler made of a candidate."""

    run: str
    """The run."""
    candidate: str
    """Its hash."""
    artefacts: list[Disassembled]
    """One entry per build, with registers, spills and instruction counts."""


def list_problems(place: Place, wanted: RunNamed) -> ProblemsAnswer:
    """List the problems of a run: what each is, how much of the model's time it takes, how far its best kernel is."""
    journal, folder = opened(place.home, named(place, wanted.run))
    tree = journal.tree()
    rows = [_row(tree, number, key) for number, key in enumerate(tree.problems, 1)]
    languages = list(onlooking(FoundRun(folder, place.home), tree).seeds.backends)
    return ProblemsAnswer(run=journal.run_id, languages=languages, problems=rows)


def _row(tree: Tree, number: int, key: str) -> ProblemRow:
    problem, best = tree.problems[key], tree.best.get(key)
    node = tree.nodes[key, best] if best else None
    speed = speeds(tree, key).certified(best) if best else None
    ended = tree.quests[key].ended
    return ProblemRow(
        number=number,
        op=problem.op,
        cases=[case.label for case in problem.cases],
        share=problem.share,
        count=problem.count,
        candidates=sum(owner == key for owner, _ in tree.nodes),
        best=f"{node.candidate.backend} by {node.candidate.author.name}" if node else "",
        speed=None if speed is None else math.exp(speed),
        of_floor=floor_share(tree, problem),
        ended=ended.reason if ended else "",
    )


def get_brief(place: Place, wanted: OfProblem) -> BriefAnswer:
    """Tell everything an author is told who is to make the best kernel of a problem faster, with its source."""
    from kernelwright.hardware.calibrate import known_ceilings

    journal, folder = opened(place.home, named(place, wanted.run))
    tree = journal.tree()
    chosen = problem_named(tree, wanted.problem)
    onlooker = onlooking(FoundRun(folder, place.home), tree)
    onlooker.ceilings = known_ceilings(chosen.device, place.home)
    found = brief_of_best(onlooker, chosen)
    number = list(tree.problems).index(chosen.hash) + 1
    first = found.parents[0] if found.parents else None
    return BriefAnswer(
        run=journal.run_id,
        number=number,
        backend=first.backend if first else "",
        candidate=first.hash if first else "",
        source=first.source if first else "",
        page=markdown(found, name_of(folder, place.home), number, home_words(place.home)),
    )


def history(place: Place, wanted: HistoryOf) -> HistoryAnswer:
    """List what was tried in a run, by whom, and what came of it; failures too."""
    journal, _ = opened(place.home, named(place, wanted.run))
    tree = journal.tree()
    key = problem_named(tree, wanted.problem).hash if wanted.problem is not None else None
    nodes = [one for one in tree.nodes.values() if key in (None, one.problem_hash) and one.seq > wanted.after]
    return HistoryAnswer(
        run=journal.run_id, all=len(tree.nodes), tried=[_tried(tree, one) for one in nodes[-wanted.most :]]
    )


def _tried(tree: Tree, node: Node) -> Tried:
    candidate, verdict, failed = node.candidate, last_verdict(node), failure_of(node)
    speed = None if failed else speeds(tree, node.problem_hash).certified(candidate.hash)
    reason = node.decision.reason if node.decision else ""
    if not reason and verdict and verdict.failure:
        reason = verdict.failure.reason
    author = f"{candidate.author.name} {candidate.author.detail}".strip()
    return Tried(
        number=node.seq,
        candidate=candidate.hash,
        problem=tree.problems[node.problem_hash].cases[0].label,
        backend=candidate.backend,
        author="baseline" if candidate.origin is Origin.BASELINE else author,
        note=candidate.note,
        choices=list(candidate.choices),
        parents=list(candidate.parents),
        status=failed.value if failed else verdict.status.value if verdict else "pending",
        kept=node.decision.kept if node.decision else None,
        speed=None if speed is None else math.exp(speed),
        reason=reason,
    )


def disassembly(place: Place, wanted: CandidateNamed) -> DisassemblyAnswer:
    """Show the machine code of a judged candidate with its spill report: registers, spills, vector widths, counts."""
    journal, folder = opened(place.home, named(place, wanted.run))
    node = _node(journal.tree(), wanted.candidate)
    found = listing(folder, node, Extent(wanted.lines, wanted.function))
    return DisassemblyAnswer(run=journal.run_id, candidate=node.candidate.hash, artefacts=found)


def _node(tree: Tree, name: str) -> Node:
    """Return the candidate that is meant: by its number, or by its hash."""
    if name.isdecimal() and len(name) < 6:
        found = [one for one in tree.nodes.values() if one.seq == int(name)]
    else:
        found = [one for (_, own), one in tree.nodes.items() if name and own.startswith(name)]
    if len({one.candidate.hash for one in found}) != 1:
        many = "several candidates are" if found else "no candidate is"
        raise BadInput("candidate", f"{many} called {name!r}", f"history lists 0 to {len(tree.nodes) - 1}.")
    return found[0]


TOOLS = (
    Tool(list_problems, RunNamed, ProblemsAnswer),
    Tool(get_brief, OfProblem, BriefAnswer),
    Tool(history, HistoryOf, HistoryAnswer),
    Tool(disassembly, CandidateNamed, DisassemblyAnswer),
)

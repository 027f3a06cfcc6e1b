"""Search over the kernels of past runs: by op, language, words in the source, and certified speed."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelwright.core.candidate import Origin
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.frozen import Frozen
from kernelwright.core.search import failure_of, last_verdict, speeds
from kernelwright.core.tree import Tree
from kernelwright.core.verdict import JUDGE_VERSION
from kernelwright.report.measures import baselines
from kernelwright.store.journal import Journal
from kernelwright.store.locate import RUN_ID, run_ids, runs_folder

MOST_RUNS = 200
"""Runs that are looked through, the newest ones."""


class PastKernel(Frozen):
    """A certified kernel of a past run."""

    run: str
    """The run."""
    number: int
    """Its number there: `kernelwright show RUN --node NUMBER` shows it whole."""
    candidate: str
    """Its hash."""
    op: str
    """The kernel type."""
    cases: tuple[str, ...]
    """Sizes it was judged at."""
    device: str
    """Where."""
    backend: str
    """Its language."""
    author: str
    """Who proposed it."""
    note: str
    """What was tried."""
    speed: float | None
    """Time of the baseline that was to be beaten over its own, certified; None if it was not accepted."""
    kept: bool
    """Whether it was the best of its problem for a time."""
    judge_version: str
    """By which version of the judge's rules."""
    failure: str
    """How it failed; empty if it did not."""
    lines: tuple[str, ...]
    """Lines of the source with the words that were searched for, numbered."""
    source: str
    """The whole source, if it was asked for."""


@dataclass(frozen=True)
class Search:
    """What is looked for."""

    op: str | None = None
    backend: str | None = None
    constructs: tuple[str, ...] = ()
    """Words that must all be in the source, whatever their case."""
    min_speed: float | None = None
    with_failures: bool = False
    with_source: bool = False
    most: int = 10


SHOWN_LINES = 8


def past_kernels(home: Path, wanted: Search) -> tuple[list[PastKernel], list[str]]:
    """Return what matches, fastest first, and the runs that could not be read.

    What retired rules judged comes after everything judged by the present ones: the two are not ranked together.
    """
    found: list[PastKernel] = []
    unread: list[str] = []
    for run in [one for one in run_ids(home) if RUN_ID.fullmatch(one)][-MOST_RUNS:]:
        try:
            tree = Journal.open(runs_folder(home) / run).tree()
        except KernelwrightError as error:  # a run on a shared server, or one that is being created
            unread.append(f"{run}: {error}")
            continue
        found += _matching(run, tree, wanted)
    return _distinct(sorted(found, key=_rank))[: wanted.most], unread


def _rank(one: PastKernel) -> tuple[bool, str, float]:
    return one.judge_version != JUDGE_VERSION, one.judge_version, -(one.speed or 0.0)


def _distinct(found: Iterable[PastKernel]) -> list[PastKernel]:
    """Return every kernel once, where it comes first."""
    first: dict[str, PastKernel] = {}
    for one in found:
        first.setdefault(one.candidate, one)
    return list(first.values())


def _matching(run: str, tree: Tree, wanted: Search) -> Iterator[PastKernel]:
    beaten = baselines(tree)
    measured = {key: speeds(tree, key) for key in tree.problems}
    for (key, own), node in tree.nodes.items():
        candidate, problem = node.candidate, tree.problems[key]
        if candidate.origin is Origin.BASELINE or wanted.op not in (None, problem.op):
            continue
        if wanted.backend not in (None, candidate.backend):
            continue
        if not all(word.lower() in candidate.source.lower() for word in wanted.constructs):
            continue
        failed = failure_of(node)
        speed = None if failed else measured[key].certified(own)
        base = measured[key].certified(beaten[key]) if key in beaten else None
        ratio = math.exp(speed - base) if speed is not None and base is not None else None
        if ratio is None and not (failed and wanted.with_failures):
            continue
        if wanted.min_speed is not None and (ratio or 0.0) < wanted.min_speed:
            continue
        yield PastKernel(
            run=run,
            number=node.seq,
            candidate=own,
            op=problem.op,
            cases=tuple(case.label for case in problem.cases),
            device=problem.device.name,
            backend=candidate.backend,
            author=candidate.author.name,
            note=candidate.note,
            speed=None if ratio is None else round(ratio, 4),
            kept=bool(node.decision and node.decision.kept),
            judge_version=verdict.judge_version if (verdict := last_verdict(node)) else "",
            failure=failed.value if failed else "",
            lines=_lines(candidate.source, wanted.constructs),
            source=candidate.source if wanted.with_source else "",
        )


def _lines(source: str, words: Iterable[str]) -> tuple[str, ...]:
    """Return the first lines that hold any of the words, with their numbers."""
    lowered = [word.lower() for word in words]
    held = [
        f"{number}: {line.strip()}"
        for number, line in enumerate(source.splitlines(), 1)
        if any(word in line.lower() for word in lowered)
    ]
    return tuple(held[:SHOWN_LINES])

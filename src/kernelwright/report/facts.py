"""One pure reading of a run into a `Report`: the only place that knows how the journal becomes what people read."""

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.core.account import Against
from kernelwright.core.events import ModelRanked
from kernelwright.core.ledger import ledger_of
from kernelwright.core.lesson import Lesson
from kernelwright.core.tree import Tree
from kernelwright.report.chronicle import Chronicle
from kernelwright.report.headline import end_to_end, headline
from kernelwright.report.measures import work_of
from kernelwright.report.model import (
    Count,
    EndToEnd,
    Fate,
    Interval,
    LeftOut,
    LessonFact,
    ProblemFact,
    Report,
    Roof,
    Slice,
)
from kernelwright.report.problem_facts import problem_fact
from kernelwright.report.usage import how_launched, line, line_alone, served, who_ran_the_rest

CACHED = 4.0
"""Data of less than this many caches may still lie in one when it is read again."""
OTHERS, BETWEEN = "other regions", "between the regions"
NAMED = 6
"""Regions left out that have a slice of their own; the rest is one slice."""


@dataclass(frozen=True)
class Around:
    """What the journal does not hold: where the run lies and what its device can do."""

    run_id: str
    kernels: str = ""
    """Folder of the installed kernels; empty if there is none."""
    roof: Roof | None = None


def facts(run: Chronicle, around: Around) -> Report:
    """Return everything a report says."""
    tree = run.tree
    started, ranked = tree.started, tree.ranked
    config = started.config if started else {}
    problems = tuple(problem_fact(run, key) for key in tree.problems)
    whole = end_to_end(tree.verified) if tree.verified else None
    model = str(config.get("model") or "")
    is_shipped = whole is not None and whole.is_shipped
    return Report(
        run_id=around.run_id,
        model=model,
        device=started.device.title if started else "",
        headline=headline(model, whole, problems, tree.ended is not None),
        is_ended=tree.ended is not None,
        ended=tree.ended.reason if tree.ended else "the run has not ended",
        began_at=run.first_at,
        last_at=run.last_at,
        busy_s=run.busy_s if run.first_at else None,
        verify_s=run.verify_s if run.first_at and run.verify_s else None,
        starts=run.starts,
        against=baseline_words(ranked),
        total_us=ranked.total_us if ranked else None,
        limit=ranked.limit if ranked else None,
        whole=whole,
        count=_count(run, problems),
        problems=problems,
        slices=slices(ranked, problems) if ranked else (),
        measured_after=measured_after(ranked, whole) if ranked and is_shipped else None,
        roof=around.roof,
        is_cached=_is_cached(tree),
        lessons=tuple(_lesson(one) for one in tree.lessons),
        ledger=ledger_of(tree),
        left_out=_left_out(ranked),
        notes=(*run.notes, *(whole.notes if whole else ())),
        settings={name: _said(value) for name, value in config.items()},
        versions=dict(started.versions) if started else {},
        events=dict(run.kinds),
        spent_s=dict(run.spent_s),
        use=_use(tree, around) if around.kernels else "",
    )


def baseline_words(ranked: ModelRanked | None) -> str:
    """Return the way of running the model that was to be beaten, as people call it."""
    if ranked is None:
        return ""
    return {Against.COMPILED: "torch.compile", Against.EAGER: "eager"}[ranked.against]


def slices(ranked: ModelRanked, problems: Sequence[ProblemFact]) -> tuple[Slice, ...]:
    """Return the model's time before and after: problems first, then what was left out, then what has no name."""
    found = [
        Slice(name=one.name, before=one.share, after=one.share / _speedup(one), problem=place)
        for place, one in enumerate(problems)
    ]
    left = sorted((one for one in ranked.regions if one.skipped), key=lambda one: -one.share)
    found += [Slice(name=one.name, before=one.share, after=one.share) for one in left[:NAMED]]
    if others := sum(one.share for one in left[NAMED:]):
        found.append(Slice(name=OTHERS, before=others, after=others))
    rest = 1 - sum(one.before for one in found)
    if rest > 0.001:
        found.append(Slice(name=BETWEEN, before=rest, after=rest))
    return tuple(found)


def _speedup(one: ProblemFact) -> float:
    return one.in_place if one.is_installed and one.in_place else 1.0


def measured_after(ranked: ModelRanked, whole: EndToEnd | None) -> Interval | None:
    """Return the time with the winners over the time before, end to end."""
    if whole is None:
        return None
    found = whole.over_eager if ranked.against is Against.EAGER else whole.over_compiled
    return Interval(ratio=1 / found.ratio, low=1 / found.high, high=1 / found.low) if found else None


def _count(run: Chronicle, problems: Sequence[ProblemFact]) -> Count:
    challengers = [one for problem in problems for one in problem.experiments if not one.is_baseline]
    fates = [one.fate for one in challengers]
    return Count(
        candidates=len(challengers),
        evaluations=len(run.trials),
        screenings=sum(len(node.screenings) for node in run.tree.nodes.values()),
        kept=fates.count(Fate.KEPT),
        reverted=fates.count(Fate.REVERTED),
        failed=fates.count(Fate.FAILED),
    )


def _is_cached(tree: Tree) -> bool:
    for problem in tree.problems.values():
        moved = [one.bytes_moved for one in work_of(problem).values()]
        if any(bytes_ < CACHED * problem.device.cache_bytes for bytes_ in moved):
            return True
    return False


def _left_out(ranked: ModelRanked | None) -> tuple[LeftOut, ...]:
    regions = [one for one in ranked.regions if one.skipped] if ranked else []
    return tuple(
        LeftOut(name=one.name, count=one.count, share=one.share, gain=one.gain, why=one.skipped)
        for one in regions
    )


def _lesson(one: Lesson) -> LessonFact:
    where = [part for part in (one.op, one.backend, one.arch, one.bottleneck) if part]
    return LessonFact(
        claim=one.claim,
        where=", ".join(where) or "everywhere",
        ratio=one.ratio,
        evidence=len(one.evaluations),
    )


def _said(value: object) -> str:
    if value is None or value == []:
        return "none"
    return ", ".join(str(one) for one in value) if isinstance(value, list | tuple) else str(value)


def _use(tree: Tree, around: Around) -> str:
    if tree.verified is not None and tree.verified.shipped:
        return line(around.kernels, who_ran_the_rest(tree.started), how_launched(tree))
    alone = served(tree)
    return line_alone(around.kernels, alone) if alone else ""

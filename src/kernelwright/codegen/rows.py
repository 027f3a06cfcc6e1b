"""Stages that work row by row are merged: one pass over the rows, and within a row one loop for whatever fits into it.

1. A stage can be cut behind any of its leading axes: what stands before the cut numbers the rows.
2. Stages with as many rows are one group if none reads what another row of the group computes.
3. Within a row, stages of the same length are one loop if none reads another place of it than its own.
4. Of the possible cuts the one is taken whose loops read memory one element after the other.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from kernelwright.codegen.indices import Index, variable
from kernelwright.codegen.values import (
    Expression,
    Pieced,
    Read,
    Stage,
    apart,
    dense,
    flat,
    loop_indices,
    parts,
)

ROW, STEP, TURN = "row", "j", "r"
"""Names of the loop variables: over rows, within a row, and over what a column sums up."""
FEW_ROWS = 8
"""Rows below which threads have nothing to share out."""
LITTLE = 16384
"""Elements below which threads are not worth starting."""
LONG = 64
"""A loop this long is as good as any longer one."""


class Store(Enum):
    """Where the result of a stage is kept."""

    WHOLE = "a buffer of all rows"
    ROW = "a buffer of one row"
    ONE = "one number for the row"
    HERE = "one number, read in its own loop alone"


@dataclass(frozen=True)
class Step:
    """A stage within a row."""

    stage: Stage
    inner: int
    """Elements of it in a row."""
    count: int
    """How long its loop is."""
    place: Index
    """Where its result goes, among all rows."""
    expression: Expression
    """Of the row, of the place in it, and for a column of what it sums up."""

    @property
    def is_column(self) -> bool:
        """Tell whether it sums up several elements of a row at once, each over others than its own."""
        return bool(self.stage.how) and self.inner > 1

    @property
    def turns(self) -> int:
        """Return how many a column sums up."""
        return math.prod(self.stage.reduced) if self.is_column else 1

    @property
    def reads(self) -> list[Read]:
        """Return the elements it reads."""
        return [one for one in parts(self.expression) if isinstance(one, Read)]


@dataclass(frozen=True)
class Loop:
    """Steps of the same length, computed together."""

    count: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Group:
    """Rows, and what is computed in each."""

    rows: int
    loops: tuple[Loop, ...]
    stores: dict[str, Store]
    """Where the result of each stage is kept."""

    @property
    def steps(self) -> list[Step]:
        """Return all steps in order."""
        return [step for loop in self.loops for step in loop.steps]

    @property
    def work(self) -> int:
        """Return how many elements are computed."""
        return sum(step.stage.work for step in self.steps)

    @property
    def is_flat(self) -> bool:
        """Tell whether a row is a single element, and nothing is summed up."""
        return all(loop.count == 1 and not step.stage.how for loop in self.loops for step in loop.steps)

    @property
    def runner(self) -> str:
        """Return the variable along which memory is read."""
        return ROW if self.is_flat else STEP


def grouped(stages: Sequence[Stage], outputs: Collection[str]) -> list[Group]:
    """Return stages in groups, and where each result is kept: what is no output and nobody else reads, in its row."""
    found: list[list[Stage]] = []
    for stage in stages:
        if found and _belongs(found[-1], stage):
            found[-1].append(stage)
        else:
            found.append([stage])
    groups = [_best(members) for members in found]
    readers: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for step in group.steps:
            for read in step.reads:
                readers.setdefault(read.name, set()).add(number)
    own = {name: who for name, who in readers.items() if name not in outputs}
    return [
        replace(group, stores=dict(_stores(group, {n for n, who in own.items() if who == {number}})))
        for number, group in enumerate(groups)
    ]


def in_rows(stages: Sequence[Stage], rows: int, outputs: Collection[str]) -> Group | None:
    """Return stages in so many rows, whatever suits them best; None if one reads what another row computes."""
    if any(rows not in _row_counts(stage) for stage in stages):
        return None
    group = _planned(stages, rows)
    if group is None:
        return None
    own = {stage.name for stage in stages} - set(outputs)
    return replace(group, stores=dict(_stores(group, own)))


def _stores(group: Group, own: set[str]) -> Iterator[tuple[str, Store]]:
    """Yield where each result of a group is kept; `own` are those it alone reads."""
    for number, loop in enumerate(group.loops):
        for step in loop.steps:
            name = step.stage.name
            if name not in own:
                yield name, Store.WHOLE
            elif step.inner == 1:
                yield name, Store.ONE
            else:
                later = [other for rest in group.loops[number + 1 :] for other in rest.steps]
                is_read = any(read.name == name for other in later for read in other.reads)
                yield name, Store.ROW if is_read or step.is_column else Store.HERE


def _belongs(members: Sequence[Stage], stage: Stage) -> bool:
    """Tell whether a stage is better computed together with those before it."""
    together = _best([*members, stage])
    if not together.loops:
        return False
    if together.rows < FEW_ROWS and together.work >= LITTLE:
        return False
    return _smoothness(together) >= min(_smoothness(_best(members)), _smoothness(_best([stage])))


def _best(members: Sequence[Stage]) -> Group:
    """Return stages in the rows that suit them best; without loops if they have none in common."""
    counts = set.intersection(*(_row_counts(stage) for stage in members))
    plans = [plan for rows in sorted(counts) if (plan := _planned(members, rows)) is not None]
    return max(plans, key=_worth, default=Group(0, (), {}))


def _row_counts(stage: Stage) -> set[int]:
    return {math.prod(stage.shape[:cut]) for cut in range(len(stage.shape) + 1)}


def _worth(group: Group) -> tuple[int, int, int]:
    longest = LONG if group.is_flat else max(loop.count for loop in group.loops)
    return _smoothness(group), min(longest, LONG), group.rows


def _smoothness(group: Group) -> int:
    """Return 2 if all loops read one element after the other, 1 if at equal distances, else 0."""
    level = 2
    for step in group.steps:
        if step.count == 1 and not group.is_flat:
            continue
        for one in parts(step.expression):
            if isinstance(one, Read | Pieced):
                factor = one.index.factor(group.runner)
                level = min(level, 0 if factor is None else 2 if factor in (0, 1) else 1)
    return level


def _planned(members: Sequence[Stage], rows: int) -> Group | None:
    """Return stages in so many rows; None if one reads what another row computes."""
    loops: list[list[Step]] = []
    known: dict[str, tuple[Step, int]] = {}
    row = variable(ROW, rows)
    for stage in members:
        step = _step(stage, rows)
        fits = bool(loops) and not step.is_column and loops[-1][0].count == step.count
        for low, high in pieces((step,)):
            for read in within(step, low, high).reads:
                if read.name in known:
                    maker, _ = known[read.name]
                    own = read.index - row * maker.inner
                    if ROW in own.names or own.least < 0 or own.most >= maker.inner:
                        return None
        for read in step.reads:
            if read.name in known and known[read.name][1] == len(loops) - 1:
                maker, _ = known[read.name]
                is_here = read.index - row * maker.inner == variable(STEP, maker.inner)
                fits = fits and is_here and not maker.stage.how and maker.count == step.count
        if not fits or loops[-1][0].is_column:
            loops.append([])
        loops[-1].append(step)
        known[stage.name] = (step, len(loops) - 1)
    return Group(rows, tuple(Loop(steps[0].count, tuple(steps)) for steps in loops), {})


def _step(stage: Stage, rows: int) -> Step:
    cut = next(n for n in range(len(stage.shape) + 1) if math.prod(stage.shape[:n]) == rows)
    inner = math.prod(stage.shape[cut:])
    summed = math.prod(stage.reduced)
    is_total = bool(stage.how) and inner == 1
    count = summed if is_total else inner
    row, step = variable(ROW, rows), variable(STEP, count)
    outer = apart(row, stage.shape[:cut])
    own = [Index()] * (len(stage.shape) - cut) if is_total else apart(step, stage.shape[cut:])
    values = {f"i{axis}": index for axis, index in enumerate((*outer, *own))}
    turned = apart(step if is_total else variable(TURN, summed), stage.reduced) if stage.how else []
    values |= {f"r{number}": index for number, index in enumerate(turned)}
    place = flat(loop_indices(stage.shape), dense(stage.shape)).put(values)
    return Step(stage, inner, count, place, stage.expression.put(values))


def pieces(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return the stretches of a loop in which no expression changes."""
    count = steps[0].count
    cuts = {0, count}
    for step in steps:
        for one in parts(step.expression):
            if isinstance(one, Pieced) and one.index.names == {STEP} and one.index.factor(STEP) == 1:
                cuts.add(min(count, max(0, one.below - one.index.constant)))
    return list(pairwise(sorted(cuts)))


def within(step: Step, low: int, high: int) -> Step:
    """Return a step in a stretch of its loop, counted from its beginning: only one of its pieces may be left."""
    if (low, high) == (0, step.count):
        return step
    values = {STEP: variable(STEP, high - low) + low}
    return replace(step, expression=step.expression.put(values), place=step.place.put(values))

"""Where a model's time goes: what the model process measures, and the ranking made of it. Plain numbers, no torch.

Times are those of an average call: the sets a model is called with, each by its weight.
"""

from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from kernelwright.core.amdahl import Hot, gain, reachable, together, within_reach
from kernelwright.core.captured import CapturedRegion
from kernelwright.core.case import Case
from kernelwright.core.device import Ceilings
from kernelwright.core.errors import TargetOutOfReach
from kernelwright.core.frozen import Frozen
from kernelwright.core.roofline import Work, floor_us

LARGEST_REST = 0.05
"""Share of the time that may stay without a name."""


class Against(StrEnum):
    """The way of running the model that is to be beaten."""

    COMPILED = "compiled"
    """torch.compile as it comes."""
    EAGER = "eager"
    """The model as the user wrote it."""


class Kind(StrEnum):
    """What a region of the captured graph is."""

    OP = "op"
    """A known op, its reference checked against the region."""
    FUSION = "fusion"
    """A fusion found in the graph, a problem of op `graph`."""
    SINGLE = "single"
    """An operation that belongs to neither."""
    VIEWS = "views"
    """Views of data that lie outside all regions: they compute nothing."""
    WHOLE = "whole"
    """A graph the framework keeps for itself, because gradients are asked for."""


class Spread(Frozen):
    """Times of the same call, of every two the quicker one."""

    median_us: float = Field(gt=0)
    """The middle one."""
    low_us: float = Field(gt=0)
    """First quartile."""
    high_us: float = Field(gt=0)
    """Third quartile."""
    calls: int = Field(ge=1)
    """How many."""


class SetTimes(Frozen):
    """One way the model is called, timed under every way of running it, the calls interleaved."""

    name: str
    """Such as `prefill`."""
    weight: float = Field(gt=0, le=1)
    """Its share of the calls."""
    eager: Spread
    """As the user wrote it."""
    captured: Spread
    """Its captured graph, nothing replaced."""
    compiled: Spread | None = None
    """Under torch.compile; None if that failed."""


class Region(Frozen):
    """A kind of region, all its places together."""

    kind: Kind
    """What it is."""
    op: str
    """The op, `graph`, or the name of the operation."""
    name: str
    """Op, sizes and type in one word."""
    where: str = ""
    """File and line of the model's code, of the first place."""
    sites: int = Field(ge=1)
    """Places in the captured graphs."""
    calls: float = Field(ge=0)
    """How often it runs in an average call."""
    captured_us: float = Field(ge=0)
    """Time of all its places in an average call of the captured graph; eager runs the same kernels."""
    compiled_us: float | None = Field(default=None, ge=0)
    """The same under torch.compile."""
    is_estimated: bool = False
    """Whether `compiled_us` is its share of the captured time, because the kernels' origins were not told."""
    work: Work | None = None
    """What one run of it must do; None for what computes nothing."""
    case: Case | None = None
    """Its case, for what is a problem."""
    captured: CapturedRegion | None = None
    """Its text and plain kernels of it, for a fusion."""


class Account(Frozen):
    """One way of running the model, as a sum: regions, gaps and a rest."""

    total_us: float = Field(gt=0)
    """Measured end to end, nothing instrumented."""
    gaps_us: float = Field(ge=0)
    """Outside the regions: guards, wrappers, Python between operations; on a GPU all time in which it is idle."""
    rest_us: float
    """What is left of the total; negative if the account adds up to more than was measured."""

    @property
    def rest_share(self) -> float:
        """Return the unattributed share of the time, whatever its sign."""
        return abs(self.rest_us) / self.total_us


class Row(Frozen):
    """A region in the ranking."""

    region: Region
    """Which."""
    time_us: float = Field(ge=0)
    """Its time in an average call of the baseline."""
    share: float = Field(ge=0)
    """Share of the baseline's time."""
    floor_us: float = Field(ge=0)
    """Least time all its runs can take; no more than it takes now."""
    headroom: float | None = None
    """Time over floor; None if it has no floor but zero."""
    gain: float = Field(ge=1)
    """End-to-end speed-up if it reached its floor."""
    is_offered: bool
    """Whether it is a problem and further than 3 % from its floor."""


class Ranking(Frozen):
    """Regions by what they would gain, and what is possible at all."""

    against: Against
    """The baseline."""
    account: Account
    """Its time."""
    rows: tuple[Row, ...]
    """Largest gain first."""
    together: tuple[float, ...]
    """End-to-end speed-up if the first 1, 2, 3 ... offered regions all reached their floors."""
    limit: float = Field(ge=1)
    """Speed-up with every region at its floor and no gaps at all."""


def ranking(regions: Sequence[Region], account: Account, ceilings: Ceilings, against: Against) -> Ranking:
    """Return the regions of a model ranked by what reaching their floor would gain end to end."""
    hot = [_hot(one, ceilings, against) for one in regions]
    rows = [
        Row(
            region=one,
            time_us=part.time_us,
            share=part.time_us / account.total_us,
            floor_us=part.least_us,
            headroom=part.headroom,
            gain=gain([part], account.total_us),
            is_offered=one.case is not None and within_reach(part),
        )
        for one, part in zip(regions, hot, strict=True)
    ]
    rows.sort(key=lambda row: (-row.gain, -row.time_us, row.region.name))
    offered = [Hot(time_us=row.time_us, floor_us=row.floor_us) for row in rows if row.is_offered]
    return Ranking(
        against=against,
        account=account,
        rows=tuple(rows),
        together=together(offered, account.total_us),
        limit=reachable(hot, account.total_us),
    )


def _hot(one: Region, ceilings: Ceilings, against: Against) -> Hot:
    time_us = one.captured_us
    if against is Against.COMPILED and one.compiled_us is not None:
        time_us = one.compiled_us
    floor = 0.0 if one.work is None else one.calls * floor_us(one.work, ceilings)
    return Hot(time_us=time_us, floor_us=floor)


def refuse_out_of_reach(spec: str, target: float, found: Ranking) -> None:
    """Raise if physics excludes a speed-up, with the arithmetic."""
    if target <= found.limit:
        return
    total, least = found.account.total_us, sum(row.floor_us for row in found.rows)
    baseline = {Against.COMPILED: "torch.compile", Against.EAGER: "eager"}[found.against]
    raise TargetOutOfReach(
        spec,
        target,
        f"{baseline} takes {total / 1e3:.3f} ms, the floors of the model's {len(found.rows)} regions add up to "
        f"{least / 1e3:.3f} ms without any gaps, and {total / 1e3:.3f} / {least / 1e3:.3f} = {found.limit:.2f}",
        found.limit,
    )

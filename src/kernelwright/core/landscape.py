"""`Landscape`: what was really measured around some kernels of one problem, to be searched again without a device.

A spot is one source with one set of parameters; edges say which spots are one step apart. Every time was taken beside
the reference spot in the same heat, so that a spot's speed is a ratio and a slow minute of the machine cancels.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from statistics import median

from pydantic import Field, model_validator

from kernelwright.core.candidate import Author, Candidate, Origin, ParamChoice, ParamValue
from kernelwright.core.frozen import Frozen, Noun, canonical_json, digest
from kernelwright.core.problem import Problem
from kernelwright.core.verdict import Status


class Look(Frozen):
    """Times of one spot on one case, heat by heat."""

    case_hash: str
    """Which case."""
    times_us: tuple[float, ...] = Field(min_length=1)
    """Time of a call in every heat."""
    against_us: tuple[float, ...] = Field(min_length=1)
    """Time of the reference spot in the same heats."""

    @model_validator(mode="after")
    def _is_paired(self) -> "Look":
        if len(self.times_us) != len(self.against_us) or min(*self.times_us, *self.against_us) <= 0:
            raise ValueError("every time of a look is positive and has the reference's time beside it")
        return self

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """Return ln(reference time / own time) of every heat."""
        return tuple(math.log(a / t) for t, a in zip(self.times_us, self.against_us, strict=True))


class Source(Frozen):
    """A source text of a landscape."""

    backend: str
    """Its language."""
    text: str
    """The whole text."""
    origin: Origin = Origin.AUTHOR
    """Who answers for it."""
    name: str = ""
    """Where it came from: a seed's file name, or an author's."""


class Spot(Frozen):
    """One source with one set of parameters."""

    source: str
    """Digest of its source."""
    values: dict[str, ParamValue] = Field(default_factory=dict)
    """Its parameters."""
    status: Status
    """What the judge's quick look said."""
    reason: str = ""
    """Why it failed."""
    looks: tuple[Look, ...] = ()
    """Times by case; none if it failed."""
    parents: tuple[int, ...] = ()
    """Places of the spots it was made from when it was found by a search; empty in a grid."""
    build_s: float = Field(default=0.0, ge=0)
    """Seconds its build and quick look took."""
    screen_s: float = Field(default=0.0, ge=0)
    """Seconds of timing it."""

    def key(self) -> str:
        """Return what finds it again: source and parameters."""
        return spot_key(self.source, self.values)


def spot_key(source_digest: str, values: dict[str, ParamValue]) -> str:
    """Return the key of a spot."""
    return digest(canonical_json([source_digest, values]))


class Landscape(Noun):
    """A recorded landscape."""

    problem: Problem
    """What was measured, and on which device."""
    sources: dict[str, Source]
    """Source by digest."""
    spots: tuple[Spot, ...] = Field(min_length=1)
    """Everything that was measured."""
    baseline: int = Field(ge=0)
    """Place of the baseline among the spots."""
    roots: tuple[int, ...] = Field(min_length=1)
    """Places of the kernels a search starts from."""
    edges: tuple[tuple[int, int], ...] = ()
    """Pairs of spots one step apart, either way."""
    proof_s: float = Field(gt=0)
    """Seconds a full verdict and a comparison took, measured on a root."""
    recorded: dict[str, str] = Field(default_factory=dict)
    """Command, date, versions: how it came about."""

    @model_validator(mode="after")
    def _is_whole(self) -> "Landscape":
        places = {*self.roots, self.baseline, *(end for edge in self.edges for end in edge)}
        if not places <= set(range(len(self.spots))):
            raise ValueError("a root, an edge or the baseline is no spot")
        for own, source in self.sources.items():
            if digest(source.text) != own:
                raise ValueError(f"source {own[:12]} has another digest")
        if strangers := {spot.source for spot in self.spots} - self.sources.keys():
            raise ValueError(f"spots of unknown sources: {sorted(strangers)}")
        if len(self.place_of) != len(self.spots):
            raise ValueError("a spot appears twice")
        timed = [place for place in (self.baseline, *self.roots) if self.speed(place) is not None]
        if self.baseline not in timed or len(timed) < 2:
            raise ValueError("the baseline and at least one root must have been timed on every case")
        return self

    @cached_property
    def place_of(self) -> dict[str, int]:
        """Return the place of every spot by its key."""
        return {spot.key(): place for place, spot in enumerate(self.spots)}

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Return, for every spot, the spots one step away."""
        found: list[list[int]] = [[] for _ in self.spots]
        for one, other in self.edges:
            found[one].append(other)
            found[other].append(one)
        return tuple(tuple(sorted(set(places))) for places in found)

    @cached_property
    def reference_us(self) -> dict[str, float]:
        """Return the median time of the reference by case hash, over all heats of all spots."""
        times: dict[str, list[float]] = {}
        for spot in self.spots:
            for look in spot.looks:
                times.setdefault(look.case_hash, []).extend(look.against_us)
        return {case: median(values) for case, values in times.items()}

    def time_us(self, place: int, case_hash: str) -> float | None:
        """Return the time of a spot on a case: the reference's median over the spot's median ratio."""
        for look in self.spots[place].looks:
            if look.case_hash == case_hash:
                return self.reference_us[case_hash] / math.exp(median(look.log_ratios))
        return None

    def speed(self, place: int) -> float | None:
        """Return baseline time over a spot's time, the weighted geometric mean over the cases; None if it failed."""
        total = sum(case.weight for case in self.problem.cases)
        logs = []
        for case in self.problem.cases:
            own, base = self.time_us(place, case.hash), self.time_us(self.baseline, case.hash)
            if own is None or base is None or self.spots[place].status is not Status.ACCEPTED:
                return None
            logs.append(case.weight / total * math.log(base / own))
        return math.exp(sum(logs))

    @cached_property
    def best_speed(self) -> float:
        """Return the highest speed of any kernel; below 1 where none beats the baseline."""
        kernels = [place for place in range(len(self.spots)) if place != self.baseline]
        return max(speed for place in kernels if (speed := self.speed(place)) is not None)

    def candidate(self, place: int, parents: Sequence[str] = ()) -> Candidate:
        """Return a spot as a candidate."""
        spot = self.spots[place]
        source = self.sources[spot.source]
        return Candidate(
            op=self.problem.op,
            backend=source.backend,
            source=source.text,
            choices=(ParamChoice(values=spot.values),),
            origin=source.origin,
            parents=tuple(parents),
            author=Author(name="landscape", detail=source.name),
        )

    def find(self, candidate: Candidate, case_hash: str) -> int | None:
        """Return the place of the spot a candidate is on one case."""
        return self.place_of.get(spot_key(digest(candidate.source), candidate.values_for(case_hash)))


def grid_edges(spots: Sequence[Spot]) -> tuple[tuple[int, int], ...]:
    """Return all pairs of spots of one source that differ in exactly one parameter."""
    found = []
    for place, one in enumerate(spots):
        for other in range(place + 1, len(spots)):
            two = spots[other]
            if one.source == two.source and one.values.keys() == two.values.keys():
                changed = sum(one.values[name] != two.values[name] for name in one.values)
                if changed == 1:
                    found.append((place, other))
    return tuple(found)

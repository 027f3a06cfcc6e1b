"""The judge's clock: challengers raced against the incumbent in fresh process pairs until something is proven.

One heat gives one number per challenger, ln(incumbent time / challenger time): fresh processes each time, on a GPU
other ones by lot, because a process can be lastingly faster by luck. The sign e-process of `core.stats` decides; every
case has a guard of its own. A confirmation draws its heats from several separately started parents, and each of them
must show the gain.
"""

import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import median

from kernelwright.core.case import Case
from kernelwright.core.stats import KeepRule, Standing, block_bootstrap, hodges_lehmann, standing
from kernelwright.core.verdict import CaseRatio, Comparison, Outcome
from kernelwright.hardware.telemetry import reading
from kernelwright.judge.device_heat import DeviceHeats
from kernelwright.judge.heat import Heats, Start, TimingFailed
from kernelwright.judge.impossible import impossible
from kernelwright.judge.stages import Bench, Failure

Verdict = Comparison | Failure
"""What a race says of one challenger: a comparison, or how it failed while it was timed."""
MOST_READINGS = 64
"""Readings of one name that a comparison keeps: enough to see a clock drift, little enough for a journal."""


class IncumbentFailed(Exception):
    """The title holder itself failed while it was timed: nothing can be said of its challengers."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class Lane:
    """One challenger's way through a race."""

    def __init__(self, bench: Bench, rule: KeepRule, earlier: Comparison | None = None) -> None:
        self.bench = bench
        self.pairs: list[dict[str, tuple[float, float]]] = []
        """Per heat and case: incumbent's and challenger's time."""
        self.log_ratios: list[float] = []
        self.starts: list[int] = []
        """Which parent each heat was born from."""
        self.now = Standing(None, 1.0, 1.0)
        for number in range(earlier.pairs if earlier else 0):
            assert earlier is not None
            self.add({case.case_hash: case.times[number] for case in earlier.cases}, 0, rule)

    def add(self, times: dict[str, tuple[float, float]], start: int, rule: KeepRule) -> None:
        """Take in one heat over all cases."""
        cases = self.bench.problem.cases
        total = sum(case.weight for case in cases)
        self.pairs.append(times)
        self.starts.append(start)
        self.log_ratios.append(sum(case.weight / total * _log_ratio(times[case.hash]) for case in cases))
        per_case = [[_log_ratio(pair[case.hash]) for pair in self.pairs] for case in cases]
        self.now = standing(self.log_ratios, rule, per_case if len(cases) > 1 else ())

    def outcome(self) -> Outcome:
        """Return what was proven; a gain that one of several parents does not show is none."""
        found = self.now.outcome or Outcome.NOT_PROVEN
        groups = [
            [value for value, start in zip(self.log_ratios, self.starts, strict=True) if start == one]
            for one in set(self.starts)
        ]
        if found is Outcome.FASTER and any(median(group) <= 0 for group in groups):
            return Outcome.NOT_PROVEN
        return found


def is_by_events(benches: Sequence[Bench]) -> bool:
    """Tell which clock all arms share: launchers' events if those run all of them, else the judge's own slope."""
    return all(bench.is_launched for bench in benches)


def is_fair(bench: Bench, pairs: int, *, by_events: bool) -> bool:
    """Tell whether a candidate raced against itself is proven faster, by a margin that matters, on neither side."""
    # A bias of half the smallest gain keeps nothing that is not faster; a smaller one is seen on a GPU within 14 pairs.
    rule = KeepRule(smallest_gain=KeepRule.smallest_gain / 2, wanted_gain=1.0, beta=1e-9, max_pairs=pairs)
    (found,) = race(bench, [Lane(bench, rule)], rule, is_looked_at=False, by_events=by_events)
    if isinstance(found, Failure):
        raise IncumbentFailed(found)
    turned = standing([-value for value in found.log_ratios], rule)
    return Outcome.FASTER not in (found.outcome, turned.outcome)


def _log_ratio(pair: tuple[float, float]) -> float:
    return math.log(pair[0] / pair[1])


def heats_of(
    benches: Sequence[Bench],
    starts: Sequence[Start] = (),
    *,
    boxes: int | None = None,
    is_looked_at: bool = True,
    by_events: bool | None = None,
) -> Heats | DeviceHeats:
    """Return the heats of the clock all arms share, or of the one that is named.

    On a GPU answers are looked at in any case: there they cost a seventh of a race.
    """
    if is_by_events(benches) if by_events is None else by_events:
        return DeviceHeats(starts=starts, boxes=boxes)
    return Heats(starts, is_looked_at=is_looked_at)


def race(
    incumbent: Bench,
    lanes: Sequence[Lane],
    rule: KeepRule,
    parents: Sequence[Start] = (),
    *,
    is_looked_at: bool = True,
    by_events: bool | None = None,
) -> list[Verdict]:
    """Return, per challenger, what fresh heats against the incumbent prove; decided ones leave the race."""
    failures: dict[int, Failure] = {}
    telemetry: list[dict[str, float]] = []
    starts = max(1, len(parents))
    arms = [incumbent, *(lane.bench for lane in lanes)]
    with heats_of(arms, parents, is_looked_at=is_looked_at, by_events=by_events) as heats:
        with incumbent.lock:
            sizes = {case.hash: _size(heats, incumbent, lanes, case) for case in incumbent.problem.cases}
        while running := [
            place for place, lane in enumerate(lanes) if place not in failures and not lane.now.outcome
        ]:
            benches = [incumbent, *(lanes[place].bench for place in running)]
            try:
                with incumbent.lock:  # pair by pair: who waits for the device waits for one, not for the race
                    telemetry.append(reading(incumbent.problem.device))
                    start = len(telemetry) % starts
                    times = {
                        case.hash: heats.measure(case, benches, sizes[case.hash], start)
                        for case in incumbent.problem.cases
                    }
            except TimingFailed as failed:
                if failed.arm == 0:
                    raise IncumbentFailed(failed.failure) from failed
                failures[running[failed.arm - 1]] = failed.failure
                continue
            for rank, place in enumerate(running, start=1):
                pairs = {key: (found[0], found[rank]) for key, found in times.items()}
                lanes[place].add(pairs, start, rule)
            _tell(incumbent, lanes)
    for place, lane in enumerate(lanes):
        if place not in failures and (failure := _unbelievable(lane)):
            failures[place] = failure
    clock = "launcher-events" if isinstance(heats, DeviceHeats) else "judge-slope"
    return [
        failures[place] if place in failures else _comparison(incumbent, lane, starts, telemetry, clock, rule)
        for place, lane in enumerate(lanes)
    ]


def _unbelievable(lane: Lane) -> Failure | None:
    """Return why a challenger's times in a race are none, as they would be if it was timed alone."""
    for case in lane.bench.problem.cases:
        call_us = median(pair[case.hash][1] for pair in lane.pairs)
        if failure := impossible(lane.bench, case, call_us):
            return failure
    return None


def _size(heats: Heats | DeviceHeats, incumbent: Bench, lanes: Sequence[Lane], case: Case) -> int:
    """Return how many calls a batch of a case holds: as many as the arm that is fastest asks for.

    By the incumbent alone, one that stalled in its second call was raced in rounds of three calls, and a gain of 29 %
    was not proven against it.
    """
    try:
        size = heats.size(incumbent, case)
    except TimingFailed as failed:
        raise IncumbentFailed(failed.failure) from failed
    for lane in lanes:
        with suppress(TimingFailed):  # told by the first heat
            size = max(size, heats.size(lane.bench, case))
    return size


def _tell(incumbent: Bench, lanes: Sequence[Lane]) -> None:
    words = [
        f"x{math.exp(median(lane.log_ratios)):.2f}, evidence {lane.now.e_faster:.3g}"
        for lane in lanes
        if lane.log_ratios
    ]
    pairs = max(len(lane.log_ratios) for lane in lanes)
    incumbent.progress(f"pair {pairs}: {'; '.join(words)}")


def _interval(values: list[float], rng: random.Random) -> tuple[float, float, float]:
    """Return the Hodges-Lehmann estimate of log ratios and its bootstrap 95 % interval, as ratios."""
    centre = hodges_lehmann(values)
    low, high = block_bootstrap([[value] for value in values], rng, statistic=hodges_lehmann, resamples=400)
    return math.exp(centre), math.exp(min(low, centre)), math.exp(max(high, centre))


def _comparison(
    incumbent: Bench,
    lane: Lane,
    starts: int,
    telemetry: Sequence[Mapping[str, float]],
    clock: str,
    rule: KeepRule,
) -> Comparison:
    rng, problem = random.Random(0), lane.bench.problem
    cases = []
    for case in problem.cases:
        pairs = [pair[case.hash] for pair in lane.pairs]
        ratio, low, high = _interval([_log_ratio(pair) for pair in pairs], rng)
        cases.append(
            CaseRatio(
                case_hash=case.hash,
                label=case.label,
                ratio=ratio,
                ci_low=low,
                ci_high=high,
                incumbent_us=median(old for old, _ in pairs),
                challenger_us=median(new for _, new in pairs),
                times=tuple(pairs),
            )
        )
    if len(cases) > 1:  # else it is the case's own
        ratio, low, high = _interval(lane.log_ratios, rng)
    slower, told = lane.now.slower_case, by_name(telemetry)
    return Comparison(
        incumbent_hash=incumbent.candidate.hash,
        challenger_hash=lane.bench.candidate.hash,
        problem_hash=problem.hash,
        device_hash=problem.device.hash,
        alpha=rule.alpha,
        max_pairs=rule.max_pairs,
        outcome=lane.outcome(),
        ratio=ratio,
        ci_low=low,
        ci_high=high,
        e_faster=lane.now.e_faster,
        e_not_faster=lane.now.e_not_faster,
        pairs=len(lane.log_ratios),
        cases=tuple(cases),
        log_ratios=tuple(lane.log_ratios),
        clock=clock,
        starts=starts,
        slower_case="" if slower is None else problem.cases[slower].label,
        telemetry={name: median(values) for name, values in told.items()},
        readings={name: thinned(values) for name, values in told.items()},
    )


def by_name(telemetry: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the readings of all heats by their name; what a machine did not tell in a heat is left out."""
    names = sorted({name for one in telemetry for name in one})
    return {name: [one[name] for one in telemetry if name in one] for name in names}


def thinned(values: Sequence[float]) -> tuple[float, ...]:
    """Return at most as many values as are kept, evenly chosen, first and last included."""
    if len(values) <= MOST_READINGS:
        return tuple(values)
    step = (len(values) - 1) / (MOST_READINGS - 1)
    return tuple(values[round(step * number)] for number in range(MOST_READINGS))


def time_alone(bench: Bench, case: Case, heats: int) -> list[float]:
    """Return times of one accepted candidate in fresh processes, in microseconds: its certified timing."""
    with Heats() as keeper:
        size = keeper.size(bench, case)
        return [keeper.measure(case, (bench,), size)[0] for _ in range(heats)]

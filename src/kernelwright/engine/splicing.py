"""The winners go into the model one by one, and stay only if they pay there.

1. In order of expected gain each winner is added to those that stayed before it. One process times several such sets
   of winners side by side: the model without, with the first, with the first two ...; fresh processes repeat it.
2. A winner stays if outputs hold and the model with it is proven faster than without, or at least not slower where its
   share is too small to be seen in the whole. A winner that goes changes what the next is added to: that is timed anew.
   A run that is taken up again goes on behind the winners its journal has decided on.
3. What stays is verified as a whole: outputs, and times against eager, torch.compile and the captured graph without
   winners. If a winner had to go, or an earlier sitting chose one, in fresh processes: what was chosen by a measurement
   is not proven by it.
"""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from kernelwright.core.account import Against
from kernelwright.core.errors import ServiceDied
from kernelwright.core.events import ModelVerified, WinnerTried
from kernelwright.core.messages.model import ModelTimed, ModeTimes, OutputCheck, VerifyModel, Winner
from kernelwright.core.stats import block_bootstrap, hodges_lehmann
from kernelwright.engine.service import Show, ask_model

LOSS = 0.02
"""End-to-end loss that must be ruled out where a winner's gain is too small to be seen."""
ARMS = 4
"""Sets of winners timed side by side at most; every one is compiled in every process."""
LEAST_PROCESSES = 3
"""Fewer say nothing of what differs from one to the next."""
ROUNDS = 10
"""What differs from process to process is more than what differs from round to round."""
CHECKED_INPUTS = 3
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Whole:
    """How the whole model is asked for: the request all processes share, and how many there are."""

    request: VerifyModel
    """Without winners and arms."""
    processes: int
    show: Show
    until: float = math.inf
    """When there is time for no more than the fewest, by the monotonic clock."""


def timed(
    whole: Whole, groups: Sequence[Sequence[Winner]], arms: Sequence[Sequence[int]]
) -> list[ModelTimed]:
    """Return what fresh processes find of the model with sets of winners, each given by the places of its groups."""
    flat = tuple(winner for group in groups for winner in group)
    starts = [sum(map(len, groups[:place])) for place in range(len(groups))]
    places = tuple(
        tuple(starts[group] + number for group in arm for number in range(len(groups[group]))) for arm in arms
    )
    request = whole.request.model_copy(update={"winners": flat})
    return asked(replace(whole, request=request), places)


def asked(whole: Whole, arms: tuple[tuple[int, ...], ...]) -> list[ModelTimed]:
    """Return what fresh processes find of the model with sets of winners, each given by their places."""
    found: list[ModelTimed] = []
    longest = 0.0
    for number in range(whole.processes):
        started = time.monotonic()
        if number >= LEAST_PROCESSES and started + longest > whole.until:
            few = f"{number} of {whole.processes} processes: the budget is spent"
            found[-1] = found[-1].model_copy(update={"notes": (*found[-1].notes, few)})
            break
        whole.show(f"the whole model, process {number + 1} of {whole.processes}")
        # Outputs do not depend on the process: one looks closely, the others make sure.
        closely = {"checked_inputs": CHECKED_INPUTS if number == 0 else 1, "other_sizes": number == 0}
        request = whole.request.model_copy(update={"arms": arms, "seed": number} | closely)
        answer = ask_model(request, whole.show)
        if not isinstance(answer, ModelTimed):
            raise ServiceDied("model", f"answered {type(answer).__name__} to VerifyModel")
        found.append(answer)
        longest = max(longest, time.monotonic() - started)
    return found


def added_one_by_one(
    groups: Sequence[tuple[Winner, ...]],
    time: Callable[[Sequence[tuple[int, ...]]], list[ModelTimed]],
    rule: Callable[[Sequence[Winner], Sequence[ModelTimed], int], ModelVerified],
    record: Callable[[Sequence[WinnerTried | ModelVerified]], None],
    earlier: Mapping[str, WinnerTried],
) -> tuple[ModelVerified, list[Winner]]:
    """Add the groups of winners in turn, journal what comes of each, and return the whole and the winners that stay.

    What an earlier sitting found of a winner beside the same others, by problem hash, is not asked again.
    """
    kept, rest = _taken_up(groups, earlier)
    is_taken_up, went = len(rest) < len(groups), False
    attempt: ModelVerified | None = None
    while rest:
        arms = [kept] * bool(kept) + [kept + rest[: count + 1] for count in range(min(ARMS, len(rest)))]
        times = time(arms)
        for group in rest[:ARMS]:
            arm = arms.index((*kept, group))
            event = tried(groups, (kept, group), times, (arms.index(kept) if kept else None, arm))
            record([event])
            rest, went = rest[1:], not event.kept
            if attempt is None or event.kept:
                chosen = [winner for place in (*kept, group) for winner in groups[place]]
                attempt = rule(chosen, times, arm)
            if went:
                break
            kept = (*kept, group)
    stay = [winner for place in kept for winner in groups[place]]
    if attempt is None or is_taken_up or (stay and went):
        alone = kept or (0,)  # where nobody stays, the first attempt is told
        attempt = rule([winner for place in alone for winner in groups[place]], time([alone]), 0)
    record([attempt])
    return attempt, stay


def _taken_up(
    groups: Sequence[tuple[Winner, ...]], earlier: Mapping[str, WinnerTried]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the winners that an earlier sitting found to stay, and of those it did not get to."""
    kept: tuple[int, ...] = ()
    for place, (first, *_) in enumerate(groups):
        known = earlier.get(first.problem_hash)
        beside = tuple(groups[other][0].candidate_hash for other in kept)
        if known is None or (known.candidate_hash, known.beside) != (first.candidate_hash, beside):
            return kept, tuple(range(place, len(groups)))
        kept = (*kept, place) if known.kept else kept
    return kept, ()


def tried(
    groups: Sequence[tuple[Winner, ...]],
    who: tuple[tuple[int, ...], int],
    times: Sequence[ModelTimed],
    arms: tuple[int | None, int],
) -> WinnerTried:
    """Return whether a winner stays: its arm against the one without it, which is the captured graph at first."""
    (before, arm), (others, group) = arms, who
    problem = broken(times, arm)
    ratio, low, high = max(
        (_against(times, mode, before, arm) for mode in modes_of(times)), key=lambda found: found[1]
    )
    interval, kept = f"x{ratio:.3f} [{low:.3f}, {high:.3f}] end to end", False
    if problem is not None:
        reason = f"the outputs do not hold: {problem.output} on {problem.inputs}: {problem.problem}"
    elif not all(_calls(one, arm) > _calls(one, before) for one in times):
        reason = "it was never called"
    elif low > 1:
        reason, kept = f"pays: {interval}", True
    elif ratio >= 1 and low > 1 - LOSS:
        reason, kept = f"too small to be seen, no loss beyond {100 * LOSS:.0f} %: {interval}", True
    else:
        reason = f"does not pay: {interval}"
    return WinnerTried(
        problem_hash=groups[group][0].problem_hash,
        candidate_hash=groups[group][0].candidate_hash,
        beside=tuple(groups[place][0].candidate_hash for place in others),
        kept=kept,
        ratio=ratio,
        ci_low=low,
        ci_high=high,
        drift=drift(times, arm),
        reason=reason,
    )


def verification(
    chosen: Sequence[Winner],
    times: Sequence[ModelTimed],
    arm: int,
    against: Against = Against.COMPILED,
) -> ModelVerified:
    """Return what several processes say of a set of winners: a pure function of their raw times.

    It is shipped if it is faster than the same graph without winners, than eager, and than the baseline asked for.
    """
    found = [_verified(chosen, times, arm, mode, against) for mode in modes_of(times)]
    best = next((one for one in found if one.shipped), found[0])
    others = [
        f"{one.mode}: x{one.ratio:.3f} [{one.ci_low:.3f}, {one.ci_high:.3f}] over the captured graph"
        for one in found
        if one is not best
    ]
    told = dict.fromkeys((*others, *(note for one in times for note in one.notes)))
    return best.model_copy(update={"notes": tuple(told)})


def _verified(
    chosen: Sequence[Winner], times: Sequence[ModelTimed], arm: int, mode: str, against: Against
) -> ModelVerified:
    rows = [_mode(one, mode) for one in times]
    spliced = [row.spliced_us[arm] for row in rows]
    ratio, low, high = _interval([row.captured_us for row in rows], spliced)
    eager_ratio, eager_low, eager_high = _interval([row.eager_us for row in rows], spliced)
    # A process in which torch.compile failed says nothing of it; the others do.
    beside = [(row.compiled_us, mine) for row, mine in zip(rows, spliced, strict=True) if row.compiled_us]
    compiled: Interval | None = None
    if beside:
        compiled = _interval([theirs for theirs, _ in beside], [mine for _, mine in beside])
    problem, shipped = broken(times, arm), False
    if problem is not None:
        reason = f"outputs drift: {problem.output} on {problem.inputs}: {problem.problem}"
    elif not all(one.spliced_calls[arm] for one in times):
        reason = "the winners were never called"
    elif low <= 1 or eager_low <= 1:
        reason = "no end-to-end gain could be proven: the interval reaches 1"
    elif against is Against.COMPILED and compiled is not None and compiled[1] <= 1:
        reason = "no end-to-end gain over torch.compile could be proven: the interval reaches 1"
    else:
        under = " under a CUDA graph" if mode == "graph" else ""
        reason, shipped = f"faster end to end{under}, outputs within the framework's own error", True
    return ModelVerified(
        winners={winner.problem_hash: winner.candidate_hash for winner in chosen},
        ratio=ratio,
        ci_low=low,
        ci_high=high,
        eager_ratio=eager_ratio,
        eager_ci_low=eager_low,
        eager_ci_high=eager_high,
        compiled_ratio=compiled[0] if compiled else None,
        compiled_ci_low=compiled[1] if compiled else None,
        compiled_ci_high=compiled[2] if compiled else None,
        mode=mode,
        drift=drift(times, arm),
        fallbacks=sum(one.fallbacks[arm] for one in times),
        shipped=shipped,
        reason=reason,
    )


def broken(times: Sequence[ModelTimed], arm: int) -> OutputCheck | None:
    """Return the smallest inputs on which an arm's outputs do not hold, if there are any."""
    failing = [check for one in times for check in one.checks if check.arm == arm and check.problem]
    return min(failing, key=lambda check: check.elements, default=None)


def drift(times: Sequence[ModelTimed], arm: int) -> float:
    """Return the largest error of an arm's outputs, over the framework's own."""
    return max((check.ratio for one in times for check in one.checks if check.arm == arm), default=0.0)


def modes_of(times: Sequence[ModelTimed]) -> list[str]:
    """Return the modes of launching that every process timed, plain first."""
    return [
        mode for mode in ("plain", "graph") if all(mode in [row.mode for row in one.modes] for one in times)
    ]


def _mode(one: ModelTimed, mode: str) -> ModeTimes:
    return next(row for row in one.modes if row.mode == mode)


def _calls(one: ModelTimed, arm: int | None) -> int:
    return 0 if arm is None else one.spliced_calls[arm]


def _against(times: Sequence[ModelTimed], mode: str, before: int | None, arm: int) -> Interval:
    rows = [_mode(one, mode) for one in times]
    base = [row.captured_us if before is None else row.spliced_us[before] for row in rows]
    return _interval(base, [row.spliced_us[arm] for row in rows])


def _interval(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> Interval:
    """Return ratio and 95 % interval over processes and rounds."""
    groups = [
        [math.log(old / new) for old, new in zip(olds, news, strict=True)]
        for olds, news in zip(before, after, strict=True)
    ]
    centre = hodges_lehmann([median(group) for group in groups])
    low, high = block_bootstrap(groups, random.Random(0), block=4)
    return math.exp(centre), math.exp(min(low, centre)), math.exp(max(high, centre))

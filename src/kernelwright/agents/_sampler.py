"""Which values to look at next: Optuna's ask and tell over the grid of a source's `PARAMS`, rebuilt for every answer.

Numbers are told to the sampler by their rank, so that it knows which of them are near each other; words and switches
have no order. Values that did not run are trials that violate a constraint: the sampler learns to stay away from them.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kernelwright.core.candidate import ParamValue
from kernelwright.core.frozen import canonical_json

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Values = dict[str, ParamValue]

STARTUP = 5
"""Values looked at before the sampler trusts its model."""
MISSES = 3
"""Useless answers in a row after which the sampler is left alone: 9 ms each, and in a small grid it mostly names what
was seen."""
LISTED = 20_000
"""A grid of at most this many points is listed when the sampler has no new idea."""
BEST = 3
"""Seen points around which new ones are taken when the sampler has no new idea."""


def key(values: Mapping[str, ParamValue]) -> str:
    """Return the one spelling of a set of values."""
    return canonical_json(dict(values))


@dataclass(frozen=True)
class Space:
    """The grid of a source's parameters."""

    grid: Mapping[str, Sequence[ParamValue]]

    @cached_property
    def ordered(self) -> dict[str, list[ParamValue]]:
        """Return every parameter's distinct values, numbers by size."""
        found: dict[str, list[ParamValue]] = {}
        for name, values in self.grid.items():
            distinct = list({key({"": value}): value for value in values}.values())
            numbers = [one for one in distinct if isinstance(one, int | float) and not isinstance(one, bool)]
            found[name] = [*sorted(numbers)] if len(numbers) == len(distinct) else distinct
        return found

    @property
    def size(self) -> int:
        """Return the number of grid points."""
        return math.prod(len(values) for values in self.ordered.values())

    def holds(self, values: Mapping[str, ParamValue]) -> bool:
        """Tell whether a set of values is a point of the grid."""
        return values.keys() == self.grid.keys() and all(
            any(type(one) is type(value) and one == value for one in self.ordered[name])
            for name, value in values.items()
        )

    def points(self) -> Iterator[Values]:
        """Yield every point of the grid."""
        for combination in itertools.product(*self.ordered.values()):
            yield dict(zip(self.ordered, combination, strict=True))

    def is_ranked(self, name: str) -> bool:
        """Tell whether a parameter's values have an order."""
        return all(isinstance(one, int | float) and not isinstance(one, bool) for one in self.ordered[name])

    def distributions(self) -> "dict[str, BaseDistribution]":
        """Return the grid as the sampler knows it: ranks of ordered values, indices of the others."""
        from optuna.distributions import CategoricalDistribution, IntDistribution

        return {
            name: IntDistribution(0, len(values) - 1)
            if self.is_ranked(name)
            else CategoricalDistribution(range(len(values)))
            for name, values in self.ordered.items()
        }

    def ranks(self, values: Mapping[str, ParamValue]) -> dict[str, int]:
        """Return a point by the place of each value."""
        return {name: self.ordered[name].index(value) for name, value in values.items()}

    def at(self, ranks: Mapping[str, int]) -> Values:
        """Return the point at those places."""
        return {name: values[ranks[name]] for name, values in self.ordered.items()}


def ask(
    space: Space,
    seen: Mapping[str, tuple[Values, float | None]],
    count: int,
    is_possible: Callable[[Values], bool],
    seed: int,
) -> list[Values]:
    """Return new points worth a look; `seen` holds ln(time) by key, None for what did not run."""
    from optuna.trial import TrialState

    study, distributions = _study(space, seen, seed), space.distributions()
    found: dict[str, Values] = {}
    misses = 0
    while len(found) < count and misses < MISSES:
        trial = study.ask(distributions)
        values = space.at(trial.params)
        if key(values) in seen or key(values) in found or not is_possible(values):
            study.tell(trial, state=TrialState.FAIL)
            misses += 1
        else:
            found[key(values)] = values
            misses = 0
    for values in _nearby(space, seen, seed):
        if len(found) == count:
            break
        if key(values) not in seen and key(values) not in found and is_possible(values):
            found[key(values)] = values
    return list(found.values())


def _nearby(space: Space, seen: Mapping[str, tuple[Values, float | None]], seed: int) -> Iterator[Values]:
    """Yield points one value away from the best ones seen, then, in a grid that can be listed, all the others."""
    rng = random.Random(seed)
    known = [(time, own) for own, (values, time) in seen.items() if time is not None and space.holds(values)]
    for _, own in sorted(known)[:BEST]:
        best = seen[own][0]
        steps = [best | {name: value} for name, values in space.ordered.items() for value in values]
        yield from rng.sample(steps, len(steps))
    if space.size <= LISTED:
        points = list(space.points())
        yield from rng.sample(points, len(points))


def _study(space: Space, seen: Mapping[str, tuple[Values, float | None]], seed: int) -> "Study":
    """Return a study that was told everything seen so far."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed % (1 << 32), n_startup_trials=STARTUP, multivariate=True)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    times = [time for _, time in seen.values() if time is not None]
    worst = max(times, default=0.0)
    study.add_trials(
        _told(space, values, time, worst) for values, time in seen.values() if space.holds(values)
    )
    return study


def _told(space: Space, values: Values, time: float | None, worst: float) -> "FrozenTrial":
    from optuna.trial import create_trial

    return create_trial(
        params=space.ranks(values),
        distributions=space.distributions(),
        value=worst if time is None else time,
        constraints={"runs": 1.0 if time is None else -1.0},
    )
